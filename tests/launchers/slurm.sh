#!/bin/bash
# A SLURM of one machine, with daemons of its own, for the time of a command:
#
#   slurm.sh srun PROGRAM ARGUMENTS      two tasks
#   slurm.sh sbatch FILE                 a batch script; prints what the job wrote, and its state
#   slurm.sh requeue FILE                the same; a job that is requeued starts at once
#
# Exit code: of srun; 0 after a batch job that completed. 77 and a line that begins with SKIP where something is
# missing.
set -u
for command in munged slurmctld slurmd srun sbatch scontrol sinfo; do
  if ! PATH=$PATH:/usr/sbin command -v $command >/dev/null; then
    echo "SKIP $command is not installed (Debian: slurm-wlm munge)"
    exit 77
  fi
done
if [ "$(id -u)" != 0 ]; then
  echo 'SKIP slurmd needs root'
  exit 77
fi
PATH=$PATH:/usr/sbin
D=$(mktemp -d)
pids=()
finish() {
  scancel --state=RUNNING -u root 2>/dev/null
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null; done
  rm -rf "$D"
}
trap finish EXIT
chmod 711 "$D"
mkdir "$D/state" "$D/spool" "$D/munge"
chmod 711 "$D/munge"
dd if=/dev/urandom of="$D/munge/key" bs=1024 count=1 status=none
chmod 400 "$D/munge/key"
host=$(hostname -s)
cpus=$(nproc)
# Ports and job numbers of its own, from which ranks derive theirs: several of these may run at once.
port=$((26000 + $$ % 2000 * 2))
first_job=$((1000 + $$ % 9000))
cat >"$D/slurm.conf" <<CONF
ClusterName=levin
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge/socket
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool
SlurmctldPidFile=$D/ctld.pid
SlurmdPidFile=$D/d.pid
SlurmctldLogFile=$D/ctld.log
SlurmdLogFile=$D/d.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=10
JobRequeue=1
FirstJobId=$first_job
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=100 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:4
CONF
export SLURM_CONF=$D/slurm.conf
munged -F --force --socket="$D/munge/socket" --key-file="$D/munge/key" --pid-file="$D/munge/pid" \
  --log-file="$D/munge/log" --seed-file="$D/munge/seed" 2>/dev/null &
pids+=($!)
for ((i = 0; i < 100; i++)); do
  [ -S "$D/munge/socket" ] && break
  sleep 0.1
done
slurmctld -D -c >/dev/null 2>&1 &
pids+=($!)
slurmd -D -c >/dev/null 2>&1 &
pids+=($!)
for ((i = 0; i < 150; i++)); do
  [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && break
  sleep 0.1
done
if [ "$(sinfo -h -o %T 2>/dev/null)" != idle ]; then
  echo 'slurm.sh: the node is not idle after 15 seconds:'
  tail -n 20 "$D/ctld.log" "$D/d.log" "$D/munge/log"
  exit 70
fi
what=$1
shift
case $what in
  srun)
    srun -n 2 --ntasks-per-node=2 --oversubscribe --overcommit --kill-on-bad-exit=1 "$@"
    exit $?
    ;;
  sbatch | requeue)
    job=$(sbatch --parsable --output="$D/out.log" --open-mode=append --time=2 "$1") || exit 70
    state= sooner=
    for ((i = 0; i < 300; i++)); do
      info=$(scontrol show job "$job" 2>/dev/null)
      state=$(sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p' <<<"$info")
      case $state in
        COMPLETED | FAILED | TIMEOUT | CANCELLED | NODE_FAIL) break ;;
        PENDING)
          # SLURM holds a requeued job for two minutes. slurmd refuses a start in the second in which the job ended.
          if [ "$what" = requeue ] && [ -z "$sooner" ] && grep -q 'Restarts=1' <<<"$info"; then
            scontrol update JobId="$job" StartTime=now+2 2>/dev/null && sooner=yes
          fi
          ;;
      esac
      sleep 0.1
    done
    cat "$D/out.log"
    echo "job $state"
    [ "$state" = COMPLETED ]
    exit $?
    ;;
esac
