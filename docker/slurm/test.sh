#!/usr/bin/env bash
# Train CartPole under a Slurm of one node, started here and stopped afterwards: docker/slurm/test.sh,
# as root, on Debian. All its files are in a temporary directory, and it uses free ports.
# The output of Slurm and of the run is shown at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -n "${PYTHON:-}" ] || make --silent setup # .venv, on a fresh clone

PYTHON=${PYTHON:-.venv/bin/python}
WORK=$(mktemp -d)
RUN=slurm-test-$$
export SLURM_CONF=$WORK/slurm.conf PYTHON RUN
started=()

say() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
fail() { say "FAILED: $*"; tail -n 15 "$WORK"/*.log; exit 1; }
clean_up() {
    trap - EXIT
    scancel --quiet --user root 2>/dev/null || true
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$WORK"
}

have_tools() {
    command -v slurmctld slurmd srun munged >/dev/null && return
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge; } \
        >"$WORK/apt.log" 2>&1 || fail "no Slurm"
}

start() { # NAME COMMAND...: in the background, to be ended with this script
    "${@:2}" >"$WORK/$1.log" 2>&1 &
    started+=($!)
}

start_slurm() {
    local ports host cores
    read -r -a ports <<<"$(python3 -c '
import socket
held = [socket.socket() for _ in range(2)]
for one in held:
    one.bind(("", 0))
print(*(one.getsockname()[1] for one in held))')"
    host=$(hostname -s) cores=$(nproc)
    mkdir -m 0700 "$WORK"/{munge,state,spool}
    dd if=/dev/urandom of="$WORK/munge/key" bs=1024 count=1 status=none
    chmod 0600 "$WORK/munge/key"
    cat >"$SLURM_CONF" <<CONF
ClusterName=a3ctest
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$WORK/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
OverTimeLimit=0
MpiDefault=none
ReturnToService=2
StateSaveLocation=$WORK/state
SlurmdSpoolDir=$WORK/spool
SlurmctldPidFile=$WORK/slurmctld.pid
SlurmdPidFile=$WORK/slurmd.pid
NodeName=$host NodeAddr=127.0.0.1 CPUs=$((cores > 8 ? cores : 8)) RealMemory=8000 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES State=UP
SlurmdParameters=config_overrides
CONF
    start munged munged --foreground --force --key-file "$WORK/munge/key" --socket "$WORK/munge/socket" \
        --pid-file "$WORK/munge/pid" --log-file "$WORK/munge/log" --seed-file "$WORK/munge/seed"
    for _ in $(seq 50); do [ -S "$WORK/munge/socket" ] && break; sleep 0.1; done
    start slurmctld slurmctld -D
    start slurmd slurmd -D
    for _ in $(seq 150); do
        [ "$(sinfo --noheader --format %T 2>/dev/null)" = idle ] && return
        sleep 0.2
    done
    sinfo || true
    fail "no idle node"
}

main() {
    [ "$(id -u)" = 0 ] || { echo "docker/slurm/test.sh: needs root for a Slurm: run it as root" >&2; exit 2; }
    have_tools
    trap clean_up EXIT
    start_slurm
    say "$(slurmctld -V) on $(sinfo --noheader --format '%N, %c CPUs')"
    local job
    job=$(sbatch --parsable --ntasks=4 --mem-per-cpu=0 --output="$WORK/job.log" docker/slurm/a3c.sbatch \
        --env-id CartPole-v1 --log-interval 1 "$@")
    say "job $job"
    while squeue --noheader --job "$job" 2>/dev/null | grep -q .; do
        [ "$SECONDS" -lt 400 ] || fail "the job takes too long"
        sleep 1
    done
    grep -E 'training |the run is over|solved:|  (mean|evaluation)|^[0-9]: *[0-9]+ ' "$WORK/job.log" | tail -n 20
    say "$(scontrol show job "$job" | grep -o -E '(JobState|ExitCode)=[^ ]*' | tr '\n' ' ')"
    grep -q '"solved": true' "runs/$RUN/summary.json" || fail "not solved"
    rm -rf "runs/$RUN"
}

main "$@"
