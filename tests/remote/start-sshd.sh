#!/usr/bin/env bash
# Starts an sshd of this user on loopback, with its own keys and configuration: start-sshd.sh DIR [PORT]
# Prints the port. DIR/ssh is an ssh command that reaches it as the host "box"; DIR/pid has the process id of sshd.
set -euo pipefail
dir=$(realpath "$1")
port=${2:-$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
sshd=$(command -v sshd || echo /usr/sbin/sshd)
mkdir -p "$dir/home"
chmod 700 "$dir"
[ -e "$dir/host_key" ] || ssh-keygen -q -t ed25519 -N '' -f "$dir/host_key"
[ -e "$dir/user_key" ] || ssh-keygen -q -t ed25519 -N '' -f "$dir/user_key"
cp "$dir/user_key.pub" "$dir/authorized_keys"
cat > "$dir/sshd_config" <<CONFIG
ListenAddress 127.0.0.1
Port $port
HostKey $dir/host_key
AuthorizedKeysFile $dir/authorized_keys
PidFile $dir/pid
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
SetEnv HOME=$dir/home XDG_DATA_HOME=$dir/home/.local/share
CONFIG
echo "box,[127.0.0.1]:$port $(cut -d' ' -f1,2 "$dir/host_key.pub")" > "$dir/known_hosts"
cat > "$dir/ssh_config" <<CONFIG
Host box
    HostName 127.0.0.1
    HostKeyAlias box
    Port $port
    User $(id -un)
    IdentityFile $dir/user_key
    IdentitiesOnly yes
    UserKnownHostsFile $dir/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
CONFIG
printf '#!/bin/sh\nexec ssh -F %s "$@"\n' "$dir/ssh_config" > "$dir/ssh"
chmod 755 "$dir/ssh"
# An sshd that root starts requires this directory.
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
"$sshd" -f "$dir/sshd_config" -E "$dir/sshd.log"
for _ in $(seq 50); do
    [ -s "$dir/pid" ] && break
    sleep 0.1
done
[ -s "$dir/pid" ] || { cat "$dir/sshd.log" >&2; exit 1; }
echo "$port"
