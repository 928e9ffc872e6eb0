#!/bin/bash
# Runs a program as two ranks under Open MPI: mpirun.sh PROGRAM ARGUMENTS. Ends with mpirun's code; 77 and a line that
# begins with SKIP where something is missing.
set -u
if ! command -v mpirun >/dev/null; then
  echo 'SKIP mpirun is not installed (Debian: openmpi-bin)'
  exit 77
fi
if ! mpirun --version | grep -q 'Open MPI'; then
  echo "SKIP mpirun is not Open MPI's"
  exit 77
fi
# Few cores and root are usual in containers.
exec mpirun --allow-run-as-root --oversubscribe -n 2 "$@"
