# Sourced: a package list of its own. This machine's apt, its sources and what is installed are not touched.
#
#   private_apt SUITE FOLDER    fills FOLDER, and the array `apt` with the options that apt-get and apt-cache need;
#                               false, and the reason on standard error, if the mirror cannot be reached
# CCFS_GUEST_MIRROR (default http://deb.debian.org) has /debian and /debian-security.
private_apt() {
    local suite=$1 work=$2
    local mirror=${CCFS_GUEST_MIRROR:-http://deb.debian.org}
    local signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
    mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/none"
    echo "deb $signed $mirror/debian $suite main" >"$work/sources.list"
    case $suite in
        *-* | sid | unstable | testing) ;;
        *) echo "deb $signed $mirror/debian-security $suite-security main" >>"$work/sources.list" ;;
    esac
    : >"$work/status"
    apt=(-o Dir::State="$work/state" -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache"
        -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts="$work/none"
        -o Dir::Etc::Preferences="$work/none/none" -o Dir::Etc::PreferencesParts="$work/none"
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::http::Timeout=30)
    apt-get "${apt[@]}" -qq -o APT::Update::Error-Mode=any update >"$work/log" 2>&1 ||
        { grep -E '^[EW]:' "$work/log" >&2; return 1; }
}

# The signed kernels in the list, one a line: MAJOR.MINOR PACKAGE, oldest first; of one version the newest.
kernels_listed() {
    local flavour=$1
    apt-cache "${apt[@]}" pkgnames linux-image- |
        sed -n "/-\(rt\|cloud\)-/d; s/^linux-image-\([0-9]\+\.[0-9]\+\)\([.-][^ ]*\)\?-$flavour\$/\1 &/p" |
        sort -k1,1V -k2,2V | awk '{ last[$1] = $0; if (!seen[$1]++) order[++n] = $1 } END { for (i = 1; i <= n; i++) print last[order[i]] }'
}
