#!/bin/bash
# Runs a program as one rank on each of N hosts, which are network namespaces of this machine with slow links that lose
# packets: netns.sh N PROGRAM ARGUMENTS
#
#   LEVIN_NETNS_LOSS=P    percent of the packets that each host loses (default 1)
#   LEVIN_NETNS_DOWN=FILE the link of the last host goes down when FILE exists
#
# Ends with the largest code of the ranks; 77 and a line that begins with SKIP where something is missing.
set -u
for command in ip tc nft; do
  if ! PATH=$PATH:/usr/sbin command -v $command >/dev/null; then
    echo "SKIP $command is not installed (Debian: iproute2 nftables)"
    exit 77
  fi
done
PATH=$PATH:/usr/sbin
hosts=$1
shift
name=levin$$
if ! ip netns add "$name-switch" 2>/dev/null; then
  echo 'SKIP this user may not make network namespaces (ip netns)'
  exit 77
fi
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null; done
  for ((i = 0; i < hosts; i++)); do ip netns del "$name-$i" 2>/dev/null; done
  ip netns del "$name-switch"
}
trap finish EXIT
missing() {
  echo "SKIP $1"
  exit 77
}
ip -n "$name-switch" link add switch type bridge 2>/dev/null || missing 'this kernel has no bridges'
ip -n "$name-switch" link set switch up
for ((i = 0; i < hosts; i++)); do
  ip netns add "$name-$i"
  ip -n "$name-$i" link add eth type veth peer name "port$i" netns "$name-switch" || missing 'this kernel has no veth'
  ip -n "$name-switch" link set "port$i" master switch up
  ip -n "$name-$i" addr add "10.77.0.$((i + 1))/24" dev eth
  ip -n "$name-$i" link set eth up
  ip -n "$name-$i" link set lo up
  # Without netem a link is slow and has no delay of its own.
  tc -n "$name-$i" qdisc add dev eth root netem delay 2ms rate 200mbit 2>/dev/null ||
    tc -n "$name-$i" qdisc add dev eth root tbf rate 200mbit burst 64kb latency 50ms 2>/dev/null ||
    missing 'this kernel has neither netem nor tbf'
  ip netns exec "$name-$i" nft -f - 2>/dev/null <<NFT || missing 'this kernel has no nftables'
table inet loss {
  chain input {
    type filter hook input priority 0
    iifname "eth" numgen random mod 100 < ${LEVIN_NETNS_LOSS:-1} drop
  }
}
NFT
done
LEVIN_JOB_SECRET=$(od -An -vtx1 -N32 /dev/urandom | tr -d ' \n')
export LEVIN_JOB_SECRET WORLD_SIZE=$hosts MASTER_ADDR=10.77.0.1 MASTER_PORT=29400 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
for ((i = 0; i < hosts; i++)); do
  # exec: the process's number is that of the program. Namespaces share memory and the machine's name; hosts do not.
  (RANK=$i NODE_RANK=$i LEVIN_HOST=host$i exec ip netns exec "$name-$i" "$@") &
  pids+=($!)
done
if [ -n "${LEVIN_NETNS_DOWN:-}" ]; then
  for ((i = 0; i < 300; i++)); do
    [ -e "$LEVIN_NETNS_DOWN" ] && break
    sleep 0.1
  done
  ip -n "$name-$((hosts - 1))" link set eth down
fi
worst=0
for pid in "${pids[@]}"; do
  wait "$pid"
  code=$?
  ((code > worst)) && worst=$code
done
pids=()
exit $worst
