#!/bin/sh
# Makes this machine a host of the Berth panel at @PANEL@ (version @VERSION@).
#
#   sh berth-join.sh CODE [--pin sha256:...]       join; once more, with or without a code: update
#   sh berth-join.sh --update                      put the panel's version of the agent in place (not with --user)
#   sh berth-join.sh --remove [--keep-engines]     undo all of it and tell the panel
#
#   --dir DIR      where everything goes (root: /var/lib/berth-agent, else ~/.local/share/berth-agent)
#   --user NAME    as root: run the agent and its engines as this user instead of root
#   --no-service   do not use systemd; start the agent in the background
#   --no-start     install only
#   --yes          with --remove: do not ask
#
# What it does, in this order:
#   1. looks: Linux, Python 3.10 or newer with venv, room on the disk
#   2. fetches the agent from the panel and compares its SHA-256 with the one below
#   3. makes a virtual environment for it; each package is compared with a SHA-256 that came with the agent
#   4. joins with CODE: the panel gives a key for this host, which is written to DIR/agent/token (mode 0600)
#   5. starts the agent, with systemd where there is one
# It changes nothing outside DIR except the service's file and, for the usual DIR, the link "berth-agent"; --remove takes all
# of it away.
set -eu
umask 077

PANEL='@PANEL@'
VERSION='@VERSION@'
BUNDLE_SHA256='@BUNDLE_SHA256@'
PLAIN_HTTP='@PLAIN_HTTP@'
NEED_MIB=300

say() { printf '%s\n' "$*"; }
fail() { printf 'berth-join: %s\n' "$*" >&2; exit 1; }

# --- what was asked --------------------------------------------------------------------------------------------------
CODE='' PIN='' DIR='' RUN_AS='' SERVICE=yes START=yes ACT=join KEEP_ENGINES=no YES=no
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0" | sed '/^set -eu/,$d'; exit "${1:-0}"; }
while [ $# -gt 0 ]; do
  case "$1" in
    --pin) [ $# -gt 1 ] || fail "--pin needs a value"; PIN=$2; shift ;;
    --dir) [ $# -gt 1 ] || fail "--dir needs a value"; DIR=$2; shift ;;
    --user) [ $# -gt 1 ] || fail "--user needs a value"; RUN_AS=$2; shift ;;
    --update) ACT=update ;;
    --remove) ACT=remove ;;
    --keep-engines) KEEP_ENGINES=yes ;;
    --no-service) SERVICE=no ;;
    --no-start) START=no ;;
    --yes) YES=yes ;;
    -h | --help) usage ;;
    -*) fail "there is no option $1 (sh $0 --help)" ;;
    *) [ -z "$CODE" ] || fail "one code only (sh $0 --help)"; CODE=$1 ;;
  esac
  shift
done
ME=$(id -u)
if [ "$ME" = 0 ]; then USUAL=/var/lib/berth-agent; else USUAL=${XDG_DATA_HOME:-$HOME/.local/share}/berth-agent; fi
DIR=${DIR:-$USUAL}
case "$DIR" in /*) ;; *) DIR=$(pwd)/$DIR ;; esac
case "$DIR" in
  *[!A-Za-z0-9_./+@:,-]*) fail "the folder's name may hold letters, digits and _ . / + @ : , - only: $DIR" ;;
  */.. | */../*) fail "the folder's name may not hold ..: $DIR" ;;
esac
# One folder, one spelling: its processes are found by it.
DIR=$(printf %s "$DIR" | sed -e ':a' -e 's#/\./#/#g' -e 's#//#/#g' -e 'ta' -e 's#/\.$##' -e 's#\(.\)/$#\1#')
case "$PIN" in *[!a-z0-9:]*) fail "--pin must be sha256: and 64 hexadecimal digits" ;; esac
[ -z "$RUN_AS" ] || [ "$ME" = 0 ] || fail "--user works as root only"
[ -z "$RUN_AS" ] || id -u "$RUN_AS" >/dev/null 2>&1 || fail "there is no user $RUN_AS here"
if [ -e "$DIR/.berth-agent" ]; then
  # What an earlier run decided counts until it is said otherwise.
  [ "$(stat -c %u "$DIR/.berth-agent")" = "$ME" ] || fail "$DIR belongs to $(stat -c %U "$DIR/.berth-agent"): run this as that user"
  if [ "$ME" = 0 ] && [ -z "$RUN_AS" ] && [ -e "$DIR/agent/token" ]; then
    RUN_AS=$(stat -c %U "$DIR/agent") # what lies in it may be of any make: it is that user's
    [ "$RUN_AS" != root ] || RUN_AS=''
  fi
  [ ! -e "$DIR/no-service" ] || SERVICE=no
fi
[ "$(uname -s)" = Linux ] || fail "hosts of Berth run Linux; this is $(uname -s)"

# --- the service -----------------------------------------------------------------------------------------------------
if [ "$ME" = 0 ]; then
  UNIT=/etc/systemd/system/berth-agent.service LINK=/usr/local/bin/berth-agent
else
  UNIT=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/berth-agent.service LINK=$HOME/.local/bin/berth-agent
fi
ctl() { if [ "$ME" = 0 ]; then systemctl "$@"; else systemctl --user "$@"; fi; }
has_systemd() {
  [ "$SERVICE" = yes ] && [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1 &&
    { [ "$ME" = 0 ] || ctl show-environment >/dev/null 2>&1; }
}
# Ours is a service that starts what lies in this folder; another folder's is left alone.
our_unit() { [ -f "$UNIT" ] && grep -qF "\"$DIR/berth-agent\"" "$UNIT"; }

# Processes of this folder, by the end of their command line (agents) or a part of it (doors).
matching() {
  for entry in /proc/[0-9]*; do
    line=$({ tr '\0' ' ' <"$entry/cmdline"; } 2>/dev/null) || continue
    # shellcheck disable=SC2254 # a pattern is meant
    case "$line" in *" -m panel.fleet."$1) printf '%s\n' "${entry#/proc/}" ;; esac
  done
}
agents() { matching "agent --dir $DIR/agent "; }
doors() { matching "door --dir $DIR/agent/door --bind *"; }
stop_agent() {
  if has_systemd && our_unit; then ctl stop berth-agent.service || true; fi
  for pid in $(agents); do kill "$pid" 2>/dev/null || true; done
  tries=0
  while [ -n "$(agents)" ]; do
    tries=$((tries + 1))
    [ $tries -lt 150 ] || fail "the agent (process $(agents)) does not end"
    sleep 0.1
  done
}
start_agent() {
  if has_systemd; then
    write_unit
    ctl daemon-reload
    ctl enable --quiet berth-agent.service
    ctl restart berth-agent.service
    say "The agent runs as a service: $([ "$ME" = 0 ] || printf 'systemctl --user')$([ "$ME" != 0 ] || printf systemctl) status berth-agent"
    [ "$ME" = 0 ] || say "So that it also runs while you are not signed in: sudo loginctl enable-linger $(id -un)"
    return
  fi
  # Closed: the lock of this script must not live on in the agent.
  if [ -n "$RUN_AS" ]; then
    nohup setsid su -s /bin/sh -c "exec '$DIR/berth-agent'" "$RUN_AS" >>"$DIR/agent.log" 2>&1 </dev/null 9>&- &
  else
    nohup setsid "$DIR/berth-agent" >>"$DIR/agent.log" 2>&1 </dev/null 9>&- &
  fi
  tries=0
  while [ -z "$(agents)" ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || fail "the agent did not start; the end of $DIR/agent.log: $(tail -n 3 "$DIR/agent.log")"
    sleep 0.1
  done
  say "The agent runs in the background; what it says is in $DIR/agent.log."
  if [ -e /.dockerenv ] || [ -e /run/.containerenv ]; then
    say "This is a container: run it with an init (docker run --init, compose: init: true) and with $DIR/berth-agent as"
    say "its command. A restart of the container ends the agent and its engines; they are started again after it."
  else
    say "There is no systemd here, so nothing starts it after a restart of this machine. With cron: @reboot $DIR/berth-agent"
  fi
}
write_unit() {
  mkdir -p "$(dirname "$UNIT")"
  if [ "$ME" = 0 ]; then
    cat >"$UNIT.new" <<UNIT
@SYSTEM_UNIT@
UNIT
  else
    cat >"$UNIT.new" <<UNIT
@USER_UNIT@
UNIT
  fi
  chmod 0644 "$UNIT.new"
  mv "$UNIT.new" "$UNIT"
}

# The agent's own words (join, check, leave ...) are its user's: root neither reads nor writes in that user's folder, where
# a link could lead it anywhere. No word holds a quote.
as_agent() {
  [ -n "$RUN_AS" ] || { "$DIR/berth-agent" "$@"; return; }
  words=''
  for word in "$@"; do words="$words '$word'"; done
  su -s /bin/sh -c "exec '$DIR/berth-agent'$words" "$RUN_AS"
}
own_lock() {
  if command -v flock >/dev/null 2>&1; then
    exec 9>>"$DIR/.berth-agent"
    flock -n 9 || fail "this script runs already for $DIR"
  fi
}

# --- remove ----------------------------------------------------------------------------------------------------------
remove() {
  [ -e "$DIR/.berth-agent" ] || fail "there is no agent of Berth in $DIR"
  own_lock
  running=0
  for entry in /proc/[0-9]*; do
    job=$({ tr '\0' '\n' <"$entry/environ"; } 2>/dev/null | sed -n 's/^BERTH_JOB=//p' | head -n 1) || continue
    [ -z "$job" ] || [ ! -d "$DIR/agent/jobs/$job" ] || running=$((running + 1))
  done
  if [ $running -gt 0 ] && [ "$KEEP_ENGINES" = no ] && [ "$YES" = no ]; then
    [ -t 0 ] || fail "$running process(es) of engines run here: --yes ends them, --keep-engines leaves them alone"
    printf '%s process(es) of engines run here. End them? [y/N] ' "$running"
    read -r answer
    case "$answer" in y | Y | yes) ;; *) fail "nothing was changed" ;; esac
  fi
  stop_agent
  if [ -x "$DIR/berth-agent" ] && [ -e "$DIR/agent/token" ]; then
    [ "$KEEP_ENGINES" = yes ] || as_agent --stop-all || fail "not all engines ended; nothing was removed"
    as_agent --leave || say "The panel was not told; forget this host on its page."
  fi
  for pid in $(doors); do kill "$pid" 2>/dev/null || true; done
  if our_unit; then
    if has_systemd; then ctl disable --quiet berth-agent.service || true; fi
    rm -f "$UNIT"
    if has_systemd; then ctl daemon-reload || true; fi
  fi
  if [ "$(readlink "$LINK" 2>/dev/null || true)" = "$DIR/berth-agent" ]; then rm -f "$LINK"; fi
  rm -rf "$DIR"
  say "Removed: $DIR and everything that belonged to it."
}

# --- fetch and install -----------------------------------------------------------------------------------------------
find_python() {
  found=''
  for name in ${BERTH_PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10; do
    command -v "$name" >/dev/null 2>&1 || continue
    "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
    found=${found:-$name}
    if "$name" -c 'import ensurepip, venv' 2>/dev/null; then PY=$name; return; fi
  done
  [ -n "$found" ] || fail "Python 3.10 or newer is needed. Install python3, or name one: BERTH_PYTHON=/path/to/python3 sh $0 ..."
  fail "Python's venv is absent. Debian, Ubuntu: apt install $("$found" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
}
# fetch ADDRESS FILE [SHA256]. What is fetched is compared by hash, so the way it comes need not be trusted.
fetch() {
  "$PY" -I - "$@" <<'PYTHON'
import hashlib, ipaddress, ssl, sys, urllib.error, urllib.parse, urllib.request
address, file, wanted = sys.argv[1], sys.argv[2], (sys.argv[3:] or [""])[0]
name = urllib.parse.urlsplit(address).hostname or ""
try:
    own = name == "localhost" or ipaddress.ip_address(name).is_loopback
except ValueError:
    own = False
unchecked = ssl.create_default_context()
unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
handlers = [urllib.request.HTTPSHandler(context=unchecked)] + ([urllib.request.ProxyHandler({})] if own else [])
try:
    with urllib.request.build_opener(*handlers).open(address, timeout=60) as reply:
        data = reply.read(512 << 20)
except (OSError, urllib.error.URLError) as exc:
    sys.exit(f"berth-join: {address} cannot be fetched: {exc}")
got = hashlib.sha256(data).hexdigest()
if wanted and got != wanted:
    sys.exit(f"berth-join: {address} is not what was announced (SHA-256 {got}). If the panel was updated meanwhile, "
             "copy the command from its page again.")
with open(file, "wb") as out:
    out.write(data)
PYTHON
}
install_packages() {
  wheels=$DIR/wheels.new
  rm -rf "$wheels"; mkdir -p "$wheels"
  tag=$("$PY" -c 'import platform, sys; print("cp%d%d-%s" % (*sys.version_info[:2], platform.machine()))')
  if fetch "$PANEL/join/wheels/$tag" "$wheels/list" && [ -s "$wheels/list" ]; then
    say "Fetching packages for $tag from the panel ..."
    while read -r sha name; do
      # Nothing vouches for the list itself: a name in it must not lead out of the folder. pip compares what is there.
      case "$name" in
        *[!A-Za-z0-9_.+-]* | .* | -*) name='' ;;
        *.whl) ;;
        *) name='' ;;
      esac
      { [ -n "$name" ] && [ -n "$sha" ]; } || fail "the list of packages from $PANEL holds what is no name of a package"
      fetch "$PANEL/join/wheels/$tag/$name" "$wheels/$name" "$sha" || return 1
    done <"$wheels/list"
    if pip_install --no-index --find-links "$wheels"; then rm -rf "$wheels"; return; fi
    say "The panel's packages are not enough; trying this machine's package index."
  fi
  rm -rf "$wheels"
  pip_install || fail "the packages could not be installed: the panel has none for $tag, and this machine's package index
did not give them either. Without an index: on the panel's machine run
  .venv/bin/python manage.py agent-wheels --python $("$PY" -c 'import sys; print("%d.%d" % sys.version_info[:2])') --arch $(uname -m)
(on a connected machine), then run this script again."
}
pip_install() {
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
    "$@" -r "$CODE_DIR/requirements.txt"
}
install() {
  find_python
  mkdir -p "$DIR"
  if [ -n "$(ls -A "$DIR")" ] && [ ! -e "$DIR/.berth-agent" ]; then fail "$DIR is not empty and not of this script"; fi
  : >>"$DIR/.berth-agent"
  [ "$SERVICE" = yes ] || : >"$DIR/no-service"
  own_lock
  free=$(df -Pk "$DIR" | awk 'NR == 2 { print int($4 / 1024) }')
  [ "$free" -ge $NEED_MIB ] || fail "$DIR has $free MiB free; $NEED_MIB MiB are needed"
  CODE_DIR=$DIR/versions/$VERSION-$(printf %.12s "$BUNDLE_SHA256")
  if [ ! -e "$CODE_DIR/.complete" ]; then
    say "Fetching the agent $VERSION from $PANEL ..."
    rm -rf "$CODE_DIR"; mkdir -p "$CODE_DIR"
    fetch "$PANEL/join/agent.zip" "$CODE_DIR/agent.zip" "$BUNDLE_SHA256" || exit 1
    "$PY" -I -m zipfile -e "$CODE_DIR/agent.zip" "$CODE_DIR"
    rm "$CODE_DIR/agent.zip"
    : >"$CODE_DIR/.complete"
  fi
  VENV=$DIR/venvs/$("$PY" -I -c 'import hashlib, sys; print("%d.%d-" % sys.version_info[:2] + hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest()[:12])' "$CODE_DIR/requirements.txt")
  if [ ! -e "$VENV/.complete" ]; then
    say "Installing its packages ..."
    rm -rf "$VENV"; mkdir -p "$DIR/venvs"
    "$PY" -m venv "$VENV" || fail "no virtual environment could be made in $VENV"
    install_packages
    : >"$VENV/.complete"
  fi
}
write_command() {
  cat >"$DIR/berth-agent.new" <<COMMAND
#!/bin/sh
# The agent $VERSION of this host: without a word it runs; see berth-agent --help.
cd /
PYTHONPATH='$CODE_DIR' PYTHONNOUSERSITE=1 exec '$VENV/bin/python' -m panel.fleet.agent --dir '$DIR/agent' "\$@"
COMMAND
  chmod 0755 "$DIR/berth-agent.new"
  mv "$DIR/berth-agent.new" "$DIR/berth-agent"
  if [ -f "$0" ] && [ "$0" != "$DIR/berth-join.sh" ]; then
    cp "$0" "$DIR/berth-join.sh.new"
    mv "$DIR/berth-join.sh.new" "$DIR/berth-join.sh"
  fi
  if [ "$DIR" = "$USUAL" ] && mkdir -p "$(dirname "$LINK")" 2>/dev/null && { [ ! -e "$LINK" ] || [ -L "$LINK" ]; }; then
    ln -sf "$DIR/berth-agent" "$LINK" || true
  fi
}
# Versions that nothing uses any more: not the current one, and no process was started from it.
sweep() {
  for old in "$DIR"/versions/* "$DIR"/venvs/*; do
    case "$old" in "$CODE_DIR" | "$VENV") continue ;; esac
    used=no
    for entry in /proc/[0-9]*; do
      if { tr '\0' '\n' <"$entry/cmdline"; } 2>/dev/null | grep -qF "$old/"; then used=yes; break; fi
    done
    [ $used = yes ] || rm -rf "$old"
  done
}

# --- join ------------------------------------------------------------------------------------------------------------
authority() {
  cat <<'PEM'
@AUTHORITY@
PEM
}
join() {
  set -- --join "$PANEL"
  if [ -n "$PIN" ]; then
    set -- "$@" --pin "$PIN"
  elif [ -n "$(authority)" ]; then
    authority >"$DIR/panel-ca.pem"
    chmod 0644 "$DIR/panel-ca.pem"
    set -- "$@" --ca-file "$DIR/panel-ca.pem"
  fi
  [ "$PLAIN_HTTP" != yes ] || set -- "$@" --plain-http
  export BERTH_JOIN_CODE="$CODE"
  if NAME=$(as_agent "$@"); then
    unset BERTH_JOIN_CODE
    say "Joined as $NAME."
  elif unset BERTH_JOIN_CODE && [ -e "$DIR/agent/token" ] && as_agent --check; then
    say "This machine had joined before, and the panel knows it; the code was not needed."
  else
    return 1
  fi
}

if [ "$ACT" = remove ]; then remove; exit 0; fi
[ -n "$CODE" ] || [ -e "$DIR/agent/token" ] || { [ "$ACT" = join ] && usage 1; fail "there is no agent in $DIR to update"; }
# A script that lies here for long knows an older version; the agent fetches the panel's own by the line it trusts.
if [ "$ACT" = update ] && [ "$0" != "$DIR/update.sh" ] && [ -x "$DIR/berth-agent" ]; then
  [ -z "$RUN_AS" ] || fail "this agent runs as $RUN_AS, and root takes no program from that user's settings. Copy the command
from the panel's page instead, with a code for this host: $PANEL/hosts/new"
  exec "$DIR/berth-agent" --update
fi
case "$PANEL" in
  http://*) [ "$PLAIN_HTTP" != yes ] || say "WARNING: the panel is reached without TLS. Who can read or change what passes between
this machine and the panel can start programs here. The panel's setting BERTH_JOIN_PLAIN_HTTP allows it." ;;
esac
install
was_running=$(agents)
# Whatever fails from here on, an agent that was here before goes on.
trap 'if [ -n "$was_running" ] && [ "$START" = yes ] && [ -x "$DIR/berth-agent" ]; then start_agent; fi' EXIT
# Also a lost connection or Ctrl-C: not every shell runs the line above then.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
stop_agent
write_command
mkdir -p "$DIR/agent"
if [ -n "$RUN_AS" ]; then
  # The agent's user writes in its own folder only; what it runs stays root's.
  chmod a+rx "$DIR" "$DIR/versions" "$DIR/venvs"
  chmod -R a+rX "$CODE_DIR" "$VENV"
  [ "$(stat -c %U "$DIR/agent")" = "$RUN_AS" ] || chown -R "$RUN_AS" "$DIR/agent"
fi
joined=yes
if [ -n "$CODE" ] && [ "$ACT" = join ]; then join || joined=no; fi
[ $joined = yes ] || fail "this machine has not joined. A new code comes from the panel: $PANEL/hosts/new"
trap - EXIT HUP INT TERM
if [ "$START" = yes ]; then start_agent; fi
sweep
[ "$0" != "$DIR/update.sh" ] || rm -f "$0"
if [ "$DIR" = "$USUAL" ]; then at=; else at=" --dir $DIR"; fi
say "Done: agent $VERSION in $DIR. Take it away again: sh $DIR/berth-join.sh --remove$at"
