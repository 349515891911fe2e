#!/usr/bin/env bash
# A real Slurm on one machine, for tests. Needs Debian's slurm-wlm and munge, and root.
#   start.sh DIR [PORT]           start munge, a controller and the nodes n1 and n2; print the variable SLURM_CONF
#   start.sh --controller DIR     start the controller again
#   start.sh --node DIR NODE      start a node again
#   start.sh --stop DIR [NAME]    end all of them, or one: ctld, slurmd-n1, slurmd-n2
# Slurm listens on three ports from PORT (default 16817) on. MAX_ARRAY_SIZE in the environment limits arrays.
set -euo pipefail

ended() { # a daemon, by the file with its process id
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
}

case $1 in
--stop) for file in "$2"/${3:-*}.pid; do ended "$file"; done; exit ;;
--controller) exec slurmctld -f "$2/slurm.conf" ;;
--node) exec slurmd -f "$2/slurm.conf" -N "$3" ;;
esac

dir=$(mkdir -p "$1/state" "$1/log" && cd "$1" && pwd)
port=${2:-16817}
host=$(hostname -s)
cat > "$dir/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/ctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/log/ctld
SlurmdLogFile=$dir/log/slurmd-%n
SlurmctldPort=$port
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,bf_interval=1
ReturnToService=2
SlurmdTimeout=5
MessageTimeout=5
KillWait=3
MaxArraySize=${MAX_ARRAY_SIZE:-1001}
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=1 RealMemory=1000 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=1 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
if ! munge -n >/dev/null 2>&1; then
    mkdir -p /run/munge /var/lib/munge /var/log/munge
    [ -f /etc/munge/munge.key ] || dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 2>/dev/null
    chown -R munge: /etc/munge /run/munge /var/lib/munge /var/log/munge
    chmod 400 /etc/munge/munge.key
    # Another test may start it at the same time.
    su munge -s /bin/sh -c munged 2>/dev/null || true
    for _ in $(seq 50); do munge -n >/dev/null 2>&1 && break; sleep 0.1; done
fi
export SLURM_CONF=$dir/slurm.conf
slurmctld -f "$SLURM_CONF"
for _ in $(seq 50); do scontrol ping 2>/dev/null | grep -q ' UP' && break; sleep 0.1; done
for node in n1 n2; do slurmd -f "$SLURM_CONF" -N $node; done
for _ in $(seq 100); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && { echo "SLURM_CONF=$SLURM_CONF"; exit; }
    sleep 0.1
done
echo "the nodes did not start; see $dir/log" >&2
exit 1
