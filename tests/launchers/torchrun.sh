#!/bin/bash
# Runs a program as two ranks under PyTorch's torchrun: torchrun.sh PROGRAM ARGUMENTS. torchrun is that of
# $LEVIN_TORCHRUN, else of PATH (pip install torch). Ends with torchrun's code; 77 and a line that begins with SKIP
# where
# there is none.
set -u
torchrun=${LEVIN_TORCHRUN:-torchrun}
if ! command -v "$torchrun" >/dev/null; then
  echo "SKIP torchrun is not installed (pip install torch, or LEVIN_TORCHRUN=PATH)"
  exit 77
fi
if ! "$torchrun" --help >/dev/null 2>&1; then
  echo "SKIP $torchrun does not start"
  exit 77
fi
# Port 0: torchrun chooses a free one. Its agent listens there itself.
exec "$torchrun" --no-python --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 "$@"
