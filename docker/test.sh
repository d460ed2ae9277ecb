#!/usr/bin/env bash
# Show on a real engine what docker/README.md promises: docker/test.sh, as root, on Debian.
#
# An engine is installed and started if none runs, and stopped afterwards. A base image is made
# by debootstrap if BASE_IMAGE can't be pulled. Wheels and layers are kept for the next time, in
# A3C_DOCKER_CACHE; wheels of your own in docker/wheels are used as they are. COMPOSE="docker compose"
# tests with that instead of docker-compose, and USE_IMAGE=a3c-cluster takes an image as it is.
set -eEuo pipefail
cd "$(dirname "$0")/.."
[ -n "${PYTHON:-}" ] || make --silent setup # .venv, on a fresh clone

CACHE=${A3C_DOCKER_CACHE:-/var/cache/a3c-cluster}
BASE=${BASE_IMAGE:-$(sed -n 's/^ARG BASE_IMAGE=//p' docker/Dockerfile)}
BUILD=${BUILD_IMAGE:-$BASE}
PIP="${PYTHON:-.venv/bin/python} -m pip --disable-pip-version-check"
COMPOSE=${COMPOSE:-docker-compose}
WORK=$(mktemp -d)
export DOCKER_BUILDKIT=0 DOCKER_CLI_HINTS=false
export COMPOSE_HTTP_TIMEOUT=300 # docker-compose gives up after 60 s, too soon on a busy machine
export COMPOSE_PROJECT_NAME="a3ctest$$" IMAGE="${USE_IMAGE:-a3c-cluster:test$$}" WORKERS=3 RUN=cartpole
export ENV_ID=CartPole-v1 PRESET=auto ARGS # docker/.env, which compose reads, may have others
SERVICES="ps-0 worker-0 worker-1 worker-2 worker-3 worker-7 evaluator-0 tensorboard-0"
engine=

say() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
fail() { trap - ERR; say "FAILED: $*"; compose logs --tail=40 2>&1 | tail -n 120; exit 1; }
compose() { $COMPOSE -f docker/compose.yaml "$@"; }
declare -A ids # asked for once after each up: docker-compose takes seconds on a busy machine
container() { echo "${ids[$1]}"; }
state() { docker inspect -f '{{.State.Status}} {{.State.ExitCode}} {{.RestartCount}}' "$(container "$1")"; }
inside() { docker exec "$(container "$1")" "${@:2}"; }
until_true() { # SECONDS WHAT COMMAND...
    local deadline=$((SECONDS + $1)) what=$2
    until "${@:3}"; do
        [ "$SECONDS" -lt "$deadline" ] || fail "waited $1 s for: $what"
        sleep 0.5
    done
    say "$what"
}

clean_up() {
    trap - EXIT
    compose down --volumes --timeout 5 >"$WORK/down.log" 2>&1 || true
    [ -n "${USE_IMAGE:-}" ] || docker image rm "$IMAGE" >/dev/null 2>&1 || true
    if [ -n "$engine" ]; then
        kill "$engine" || true
        wait "$engine" || true
    fi
    remove_wheels
    rm -rf "$WORK"
}

remove_wheels() { # those that this script, or an interrupted one before, has put there
    [ ! -e docker/wheels/.made-for ] || rm -rf docker/wheels
}

# --- an engine, a base, an image ------------------------------------------------------------------

have_tools() {
    local tool missing=
    for tool in "$@"; do
        command -v "${tool%:*}" >/dev/null || missing="$missing ${tool#*:}"
    done
    # shellcheck disable=SC2086
    [ -z "$missing" ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } \
        >"$WORK/apt.log" 2>&1 || { cat "$WORK/apt.log"; exit 1; }
}

start_engine() {
    if docker info >/dev/null 2>&1; then
        return
    fi
    have_tools dockerd:docker.io iptables:iptables
    export DOCKER_HOST="unix://$WORK/engine.sock"
    mkdir -p "$CACHE/engine"
    dockerd --data-root "$CACHE/engine" --exec-root "$WORK/exec" --pidfile "$WORK/engine.pid" \
        --host "$DOCKER_HOST" >"$WORK/engine.log" 2>&1 &
    engine=$!
    for _ in $(seq 120); do
        docker info >/dev/null 2>&1 && return
        kill -0 "$engine" 2>/dev/null || break
        sleep 0.5
    done
    tail -n 20 "$WORK/engine.log"
    fail "no engine"
}

take_base() {
    if docker image inspect "$BASE" >/dev/null 2>&1 || timeout 120 docker pull -q "$BASE" >/dev/null 2>&1; then
        return
    fi
    say "$BASE can't be pulled: making a base of this Debian"
    BASE=a3c-base:local BUILD=a3c-base:local
    if ! docker image inspect "$BASE" >/dev/null 2>&1; then
        have_tools debootstrap:debootstrap
        # shellcheck disable=SC1091
        debootstrap --variant=minbase --include=python3,python3-venv,binutils \
            "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$WORK/base" >"$WORK/base.log" 2>&1 ||
            { tail "$WORK/base.log"; fail "debootstrap"; }
        (cd "$WORK/base" && rm -rf var/cache/apt/* var/lib/apt/lists/* usr/share/{doc,man,locale}/*)
        tar -C "$WORK/base" -c . | docker import - "$BASE" >/dev/null
        rm -rf "$WORK/base"
    fi
}

take_wheels() { # so that the build needs no index, and no certificates of this machine
    local version kept="$CACHE/wheels"
    remove_wheels
    if compgen -G 'docker/wheels/*.whl' >/dev/null; then
        return
    fi
    version=$(docker run --rm --entrypoint python3 "$BASE" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    sed 's/^tensorflow==/tensorflow-cpu==/' requirements.lock >"$WORK/wanted.txt"
    echo "# $version" >>"$WORK/wanted.txt"
    if ! cmp -s "$WORK/wanted.txt" "$kept/.made-for"; then
        rm -rf "$kept"
        # shellcheck disable=SC2086
        $PIP download --quiet --only-binary :all: --python-version "$version" --dest "$kept" \
            --requirement "$WORK/wanted.txt" 2>"$WORK/pip.log" || { cat "$WORK/pip.log"; fail "no wheels"; }
        cp "$WORK/wanted.txt" "$kept/.made-for"
    fi
    mkdir -p docker/wheels
    cp "$kept/.made-for" "$kept"/*.whl docker/wheels # the mark first, for remove_wheels
}

build() {
    docker build --target runtime --tag "$IMAGE" --file docker/Dockerfile --build-arg "BASE_IMAGE=$BASE" \
        --build-arg "BUILD_IMAGE=$BUILD" . >"$WORK/build.log" 2>&1 || { tail -n 40 "$WORK/build.log"; fail "no image"; }
}

up() { # FLAGS...
    local name
    ARGS="--checkpoint-interval 3 --log-interval 0.5 --max-env-steps 1000000000 $*"
    ARGS+=" --adam-epsilon 1e-3" # at CartPole's own 1e-5 a policy that goes on learning once it is perfect may fall
    compose up --detach >"$WORK/up.log" 2>&1 || { cat "$WORK/up.log"; fail "up"; }
    for name in $SERVICES; do
        ids[$name]=$(docker ps -aq --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" \
            --filter "label=com.docker.compose.service=$name")
    done
}

# --- what is claimed ------------------------------------------------------------------------------

has_checkpoint() { inside worker-0 sh -c 'ls /runs/cartpole/checkpoints/*/manifest.json' >/dev/null 2>&1; }
is_well() { inside "$1" python -m a3c.keeper.health /runs >/dev/null 2>&1; }
came_back() { case $(state "$1") in "running 0 "[1-9]*) is_well "$1" ;; *) false ;; esac; }
is_restored() { docker logs "$(container worker-0)" 2>&1 | grep "restored the ps from" >/dev/null; }
ended_well() { case $(state "$1") in "exited 0 "*) true ;; "exited "*) fail "$1 is $(state "$1")" ;; *) false ;; esac; }
kill_container() {
    local pid
    pid=$(docker inspect -f '{{.State.Pid}}' "$(container "$1")")
    [ "$pid" -gt 1 ] || fail "$1 had ended before it could be killed"
    kill -KILL "$pid"
}

check_rights() {
    local name found
    for name in ps-0 worker-0 worker-1 worker-2 evaluator-0 tensorboard-0; do
        found=$(inside "$name" sh -c 'id -u; grep -h -e CapEff -e CapBnd -e NoNewPrivs /proc/self/status; touch /a3c/x 2>&1; true')
        [ "$(echo "$found" | tr -d '\n\t ' | sed 's/touch.*Read-onlyfilesystem/read-only/')" = \
            1000CapEff:0000000000000000CapBnd:0000000000000000NoNewPrivs:1read-only ] || fail "$name has rights: $found"
    done
    say "uid 1000, no capabilities, no new privileges, read-only root"
}

# Says a word to whoever comes, and: which of some addresses say it? A proxy in between may accept any
# connection, and even speak HTTP/2 like a server of TensorFlow.
SAY='
import socket, sys
listener = socket.create_server(("", 2300))
while True:
    caller, _ = listener.accept()
    caller.sendall(sys.argv[1].encode())
    caller.close()'
ASK='
import socket, sys
from concurrent.futures import ThreadPoolExecutor
def answers(host):
    try:
        with socket.create_connection((host, 2300), 2) as connection:
            connection.settimeout(2)
            return connection.recv(99) == sys.argv[1].encode()
    except OSError:
        return False
print(sum(ThreadPoolExecutor().map(answers, sys.argv[2:])))'

all_answer() { [ "$(inside "$1" python -c "$ASK" "${@:2}")" = $(($# - 2)) ]; }

check_ports() {
    local name found word="word-$RANDOM$RANDOM" all=()
    for name in ps-0 worker-0 worker-2; do
        docker exec --detach "$(container "$name")" python -c "$SAY" "$word"
        all+=("$(docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$(container "$name")")")
    done
    until_true 60 "ps and workers answer each other" all_answer worker-2 "$word" "${all[@]}"
    found="$(python3 -c "$ASK" "$word" "${all[@]}") $(
        docker run --rm --entrypoint python "$IMAGE" -c "$ASK" "$word" "${all[@]}") $(
        inside tensorboard-0 python -c "$ASK" "$word" "${all[@]}")"
    [ "$found" = "0 0 0" ] || fail "answer the host, another container, TensorBoard: $found"
    if python3 -c 'import socket; socket.create_connection(("127.0.0.1", 2222), 2)' 2>/dev/null; then
        fail "port 2222 of the host answers"
    fi
    found=$(for name in "${ids[@]}"; do docker port "$name"; done | sed 's/.*-> //')
    [ "$found" = "127.0.0.1:$TENSORBOARD_PORT" ] || fail "published: $found"
    say "they don't answer the host, another container, or TensorBoard"
}

board_answers() {
    python3 -c "import urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:$TENSORBOARD_PORT', timeout=5)" 2>/dev/null
}

check_summary() {
    docker cp "$(container worker-0):/runs/cartpole/summary.json" "$WORK/summary.json" >/dev/null
    python3 - "$WORK/summary.json" <<'PYTHON' || fail "$(cat "$WORK/summary.json")"
import json, sys
summary = json.load(open(sys.argv[1]))
evaluation = summary["evaluation"]
assert summary["state"] == "done" and summary["solved"] is True, summary
assert evaluation["mean"] >= 200, evaluation
print(f"        {summary['env_steps']:,} env steps, mean return {summary['mean_return_100']:.1f}, "
      f"{evaluation['episodes']} games: {evaluation['mean']:.1f}")
PYTHON
}

check_nothing_left() {
    local filter="label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" left
    left=$(docker ps -aq --filter "$filter"; docker volume ls -q --filter "$filter"; docker network ls -q --filter "$filter")
    [ -z "$left" ] || fail "left over: $left"
    say "down: nothing is left"
}

main() {
    [ "$(id -u)" = 0 ] || { echo "docker/test.sh: needs root for an engine: run it as root" >&2; exit 2; }
    have_tools docker:docker.io "${COMPOSE%% *}:docker-compose"
    trap clean_up EXIT
    start_engine
    trap 'fail "line $LINENO: $BASH_COMMAND"' ERR
    say "engine $(docker version -f '{{.Server.Version}}'), $($COMPOSE version --short)"
    if [ -z "${USE_IMAGE:-}" ]; then
        take_base
        take_wheels
        build
    fi
    say "image of $(($(docker image inspect -f '{{.Size}}' "$IMAGE") / 1000000)) MB"

    TENSORBOARD_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
    export TENSORBOARD_PORT
    up --stop-at-return 501 # more than there is: however fast it learns, it has not ended before all is seen
    until_true 300 "a first checkpoint" has_checkpoint
    kill_container worker-1
    kill_container ps-0
    until_true 300 "the killed worker is at work again" came_back worker-1
    until_true 300 "the killed ps is at work again" came_back ps-0
    until_true 300 "the run went on from its checkpoint" is_restored
    check_ports
    check_rights
    until_true 200 "TensorBoard answers on 127.0.0.1" board_answers
    compose stop >"$WORK/stop.log" 2>&1 || { cat "$WORK/stop.log"; fail "stop"; }
    say "stopped"
    up # with CartPole's own goal
    until_true 300 "the stopped run went on from its checkpoint" is_restored
    until_true 300 "the chief has ended the run" ended_well worker-0
    for name in worker-1 worker-2 worker-3 worker-7 ps-0 evaluator-0; do
        until_true 200 "$name has left with 0" ended_well "$name"
    done
    check_summary
    compose down --volumes >"$WORK/down.log" 2>&1 || { cat "$WORK/down.log"; fail "down"; }
    check_nothing_left
}

main
