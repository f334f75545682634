# Sourced: root directories of distributions, made by debootstrap(8), and programs that run in them.
#
#   in_namespaces "$@"            begins the calling script again, with the argument `inside`, where its mounts are its own and its processes
#                                 end with it: nothing is left mounted, whatever happens. Needs root.
#   bootstrap SUITE ROOT CACHE WHICH [PACKAGE...]   makes ROOT, or takes it as it was made before. WHICH: release (never changes any
#                                 more) or updates (with fixes)
#   enter ROOT COMMAND...         runs it there
DEBIAN=http://deb.debian.org/debian
UBUNTU=http://archive.ubuntu.com/ubuntu
# Ubuntu's keys, for machines that have no package of them: what is downloaded has to be this.
KEYRING=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
KEYRING_SHA256=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8

in_namespaces() {
    if [ "$(id -u)" != 0 ]; then
        echo "a chroot needs root: try with sudo" >&2
        exit 1
    fi
    exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$0" inside "$@"
}

# fetch URL FILE SHA256: unless it is there.
fetch() {
    if ! echo "$3  $2" | sha256sum --check --status 2>/dev/null; then
        echo "fetching $1" >&2
        curl -fsS --retry 3 --proto '=http,https' -o "$2.part" "$1"
        echo "$3  $2.part" | sha256sum --check --quiet
        mv "$2.part" "$2"
    fi
}

# keyring_of MIRROR CACHE
keyring_of() {
    local known=/usr/share/keyrings/debian-archive-keyring.gpg
    [ "$1" = $DEBIAN ] || known=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    if [ ! -e "$known" ]; then
        if [ "$1" = $DEBIAN ]; then
            echo "$known is missing; install the package debian-archive-keyring" >&2
            return 1
        fi
        fetch "$UBUNTU/$KEYRING" "$2/ubuntu-keyring.deb" $KEYRING_SHA256
        dpkg-deb -x "$2/ubuntu-keyring.deb" "$2/ubuntu-keyring"
        known=$2/ubuntu-keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg
    fi
    echo "$known"
}

bootstrap() {
    local suite=$1 root=$2 cache=$3 which=$4 mirror=$UBUNTU script=gutsy keyring recipe
    shift 4
    case $suite in bookworm | trixie) mirror=$DEBIAN script=sid ;; esac
    recipe="$suite $mirror $which $*"
    if [ "$(cat "$root/.made-of" 2>/dev/null)" = "$recipe" ]; then return 0; fi
    mkdir -p "$cache"
    rm -rf --one-file-system "$root"
    keyring=$(keyring_of "$mirror" "$cache")
    echo "bootstrapping $suite in $root" >&2
    debootstrap --variant=minbase --keyring="$keyring" "$suite" "$root" "$mirror" \
        "/usr/share/debootstrap/scripts/$script" >"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; return 1; }
    if [ "$which" = updates ]; then
        echo "deb $mirror $suite main" >"$root/etc/apt/sources.list"
        echo "deb $mirror $suite-updates main" >>"$root/etc/apt/sources.list"
    fi
    apt_in "$root" update
    [ "$which" != updates ] || apt_in "$root" dist-upgrade
    [ $# = 0 ] || apt_in "$root" install "$@"
    apt_in "$root" clean
    echo "$recipe" >"$root/.made-of"
}

# apt_in ROOT ARGUMENT...
apt_in() {
    local root=$1
    shift
    enter "$root" apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false "$@" >"$root.log" 2>&1 ||
        { tail -n 30 "$root.log" >&2; return 1; }
}

# The mounts are made once for each root. Without the variables of the machine: what runs there is to be the same everywhere.
enter() {
    local root=$1
    shift
    if ! mountpoint -q "$root/proc"; then
        mount -t proc proc "$root/proc"
        mount --bind /dev "$root/dev"
        mount --rbind /sys "$root/sys"
        [ ! -e /etc/resolv.conf ] || cat /etc/resolv.conf >"$root/etc/resolv.conf"
    fi
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 TZ=UTC DEBIAN_FRONTEND=noninteractive "$@"
}
