#!/usr/bin/env bash
# A real SLURM on this machine for tests: one node with two pretend GPUs. As root, on Debian or Ubuntu.
#   cluster.sh install            packages
#   cluster.sh start plain        without accounting
#   cluster.sh start accounting   with slurmdbd and MariaDB, and the account `study`
#   cluster.sh stop
# It refuses to touch a SLURM that it did not set up.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
state=/var/lib/speclayers-pretend-cluster
host=$(uname -n)
host=${host%%.*}
packages=(munge slurmctld slurmd slurm-client slurmdbd mariadb-server)

fail() {
    echo "error: $*" >&2
    exit 2
}

# Wait until a command succeeds: seconds, command.
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        ((SECONDS < deadline)) || fail "not ready: $*; see $state/*.log"
        sleep 0.2
    done
}

check() {
    [[ $(id -u) == 0 ]] || fail "the pretend cluster needs root, to install and start SLURM"
    if [[ -e /etc/slurm/slurm.conf ]] && ! grep -q 'pretend cluster of speclayers' /etc/slurm/slurm.conf; then
        fail "/etc/slurm/slurm.conf is a real cluster's; the pretend one would replace it"
    fi
}

install_packages() {
    if dpkg-query -W -f '${db:Status-Abbrev}\n' "${packages[@]}" 2> /dev/null | grep -c '^ii' | grep -qx "${#packages[@]}"; then
        return
    fi
    command -v apt-get > /dev/null || fail "the pretend cluster is installed with apt-get, which is not here"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null
}

configure() {
    mkdir -p /etc/slurm "$state/slurmctld" "$state/slurmd"
    sed "s|@HOST@|$host|g; s|@STATE@|$state|g" "$here/slurm.conf" > /etc/slurm/slurm.conf
    [[ $1 == plain ]] || cat "$here/accounting.conf" >> /etc/slurm/slurm.conf
    # the plugin clears SLURM_CONF, so the usual place it must be; devices that containers have, too, stand in for GPUs
    {
        echo AutoDetect=off
        printf 'NodeName=%s Name=gpu Type=pretend File=%s\n' "$host" /dev/null "$host" /dev/zero
    } > /etc/slurm/gres.conf
    sed "s|@STATE@|$state|g" "$here/slurmdbd.conf" > /etc/slurm/slurmdbd.conf
    chmod 600 /etc/slurm/slurmdbd.conf
}

start_munge() {
    ! munge -n > /dev/null 2>&1 || return 0
    install -d -o munge -g munge -m 755 /run/munge
    runuser -u munge -- /usr/sbin/munged
    wait_for 10 munge -n
    cp /run/munge/munged.pid "$state/munged.pid"
}

start_accounting() {
    if ! mariadb-admin ping > /dev/null 2>&1; then
        install -d -o mysql -g mysql /run/mysqld
        setsid /usr/sbin/mariadbd --user=mysql --skip-networking > "$state/mariadb.log" 2>&1 &
        echo $! > "$state/mariadbd.pid"
        wait_for 60 mariadb-admin ping
    fi
    mariadb <<- SQL
		drop database if exists speclayers_pretend;
		create database speclayers_pretend;
		create or replace user speclayers_pretend@localhost identified by 'pretend';
		grant all on speclayers_pretend.* to speclayers_pretend@localhost;
	SQL
    slurmdbd
    wait_for 60 sacctmgr -n list cluster
    sacctmgr -i add cluster pretend > /dev/null
    sacctmgr -i add account study > /dev/null
    sacctmgr -i add user "$(id -un)" account=study > /dev/null
}

start() {
    [[ ${1:-} == plain || ${1:-} == accounting ]] || fail "start: expected plain or accounting"
    stop
    rm -rf "$state"
    configure "$1"
    start_munge
    [[ $1 == plain ]] || start_accounting
    slurmctld
    wait_for 30 scontrol ping
    slurmd
    wait_for 30 bash -c "sinfo -h -o %T | grep -qx idle"
}

# Stop a daemon that wrote its process id here, and wait for its end.
stop_daemon() {
    local file=$state/$1.pid pid
    [[ -e $file ]] || return 0
    pid=$(< "$file")
    if [[ $(cat "/proc/$pid/comm" 2> /dev/null) == "$1" ]]; then
        kill "$pid"
        wait_for 30 bash -c "! kill -0 $pid"
    fi
    rm -f "$file"
}

stop() {
    # jobs of a test that failed would outlive the daemons
    if scontrol ping > /dev/null 2>&1; then
        scancel --user "$(id -un)"
        wait_for 60 bash -c '[[ -z $(squeue -h) ]]'
    fi
    stop_daemon slurmd
    stop_daemon slurmctld
    stop_daemon slurmdbd
    stop_daemon mariadbd
    stop_daemon munged
    # with it, every run of Snakemake on this machine would wait ten seconds for a controller that is gone
    if grep -qs 'pretend cluster of speclayers' /etc/slurm/slurm.conf; then
        rm -f /etc/slurm/{slurm,gres,slurmdbd}.conf
    fi
}

check
case ${1:-} in
    install) install_packages ;;
    start) start "${2:-}" ;;
    stop) stop ;;
    *) fail "expected install, start or stop" ;;
esac
