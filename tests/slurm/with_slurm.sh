#!/usr/bin/env bash
# with_slurm.sh COMMAND...: run a command with a SLURM of its own: munge, a controller and two nodes of 2 CPUs on this
# machine, all in a temporary folder that is gone afterwards. Needs root and the packages slurm-wlm and munge.
#
# The command finds the cluster by SLURM_CONF; the node names are pb1 and pb2. When it has ended, jobs that are left are
# cancelled, and whatever is still there with that SLURM_CONF in its environment is killed.
set -euo pipefail

folder=$(mktemp -d /tmp/pbslurm.XXXXXX)
daemons=()

# Processes of this SLURM: those with its file in their environment, and what they have started, for Ray's agents write
# over theirs.
members() {
    local found
    # Empty for grep, which would find itself.
    found=$(SLURM_CONF='' grep -lszxF "SLURM_CONF=$folder/slurm.conf" /proc/[0-9]*/environ | cut -d / -f 3)
    while [ -n "$found" ]; do
        echo "$found"
        found=$(pgrep --parent "$(paste -sd , <<<"$found")")
    done
}

end() {
    local status=$? left
    trap '' TERM INT HUP
    set +e
    if [ -e "$folder/slurm.conf" ] && scancel --user="$(id -un)" 2>/dev/null; then
        # Jobs stop in order, or are killed after KillWait.
        for _ in $(seq 90); do [ -z "$(squeue --noheader 2>/dev/null)" ] && break; sleep 0.5; done
    fi
    kill "${daemons[@]}" 2>/dev/null
    for _ in $(seq 50); do kill -0 "${daemons[@]}" 2>/dev/null || break; sleep 0.1; done
    # Step daemons and jobs that were cut off are children of nobody any more.
    for _ in $(seq 50); do
        mapfile -t left < <(members)
        [ "${#left[@]}" -eq 0 ] && break
        kill -KILL "${left[@]}" 2>/dev/null
        sleep 0.1
    done
    if [ "$status" -ne 0 ]; then tail -n 20 "$folder"/*.log >&2 || true; fi
    rm -rf "$folder"
    exit "$status"
}
trap end EXIT
trap 'exit 143' TERM INT HUP

free_ports() {
    python3 - "$1" <<'PYTHON'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in sockets:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))
PYTHON
}

read -r controller_port first_port second_port <<<"$(free_ports 3)"
host=$(hostname -s)

chmod 755 "$folder"
mkdir -m 755 "$folder"/{munge,state,pb1,pb2}
dd if=/dev/urandom of="$folder/munge/key" bs=1024 count=1 status=none
chmod 400 "$folder/munge/key"
export MUNGE_SOCKET=$folder/munge/socket

cat >"$folder/slurm.conf" <<CONF
ClusterName=placebench
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$MUNGE_SOCKET
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/state/slurmctld.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdSpoolDir=$folder/%n
SlurmdPidFile=$folder/%n/slurmd.pid
SlurmdLogFile=$folder/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
KillWait=30
MinJobAge=300
JobRequeue=1
NodeName=pb1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$first_port CPUs=2 RealMemory=2000
NodeName=pb2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$second_port CPUs=2 RealMemory=2000
PartitionName=all Nodes=pb1,pb2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
export SLURM_CONF=$folder/slurm.conf

munged --foreground --force --key-file="$folder/munge/key" --socket="$MUNGE_SOCKET" \
    --pid-file="$folder/munge/pid" --log-file="$folder/munge.log" --seed-file="$folder/munge/seed" &>"$folder/munge.out.log" &
daemons+=($!)
for _ in $(seq 100); do [ -S "$MUNGE_SOCKET" ] && break; sleep 0.1; done
slurmctld -D -i &>>"$folder/slurmctld.out.log" &
daemons+=($!)
for name in pb1 pb2; do
    slurmd -D -N "$name" &>>"$folder/$name.out.log" &
    daemons+=($!)
done
for _ in $(seq 300); do
    [ "$(sinfo --noheader --format=%t%D 2>/dev/null)" = idle2 ] && break
    sleep 0.1
done
if [ "$(sinfo --noheader --format=%t%D 2>&1)" != idle2 ]; then
    sinfo >&2 || true
    echo "the SLURM nodes have not come up" >&2
    exit 1
fi
"$@"
