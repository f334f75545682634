# `make mount` gives you a mounted volume in ./mnt, `make test` runs everything that is checked.
# Both install what they need (Debian packages, cargo tools), only where it is missing.

CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR
CCFS := $(CARGO_TARGET_DIR)/release/ccfs
# Where there is no sudo what needs root says so; with fusermount3 a mount does not.
SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)
# The volume: `make mount IMAGE=... SIZE=... DIR=...`
IMAGE ?= ccfs.img
SIZE ?= 1G
DIR ?= mnt

.PHONY: help build mount unmount install install-libs check test man soak crash fish shuttle faults fuzz bench calibrate evidence clean

help:
	@echo "make mount     build, create $(IMAGE) ($(SIZE)) if absent, mount it on ./$(DIR)"
	@echo "make unmount   unmount ./$(DIR); $(IMAGE) is plain ext4 then"
	@echo "make install   install ccfs with its mount(8), mkfs(8) and fsck(8) helpers, pages, completions and libccfs below $(PREFIX);  make uninstall"
	@echo "make deb       Debian packages in $(CARGO_TARGET_DIR)"
	@echo "make dist      a release in $(CARGO_TARGET_DIR)/dist: packages, tarball, checksums, bill of materials; built in a chroot (docs/install.md)"
	@echo "make install-libs   only libccfs for C and C++ programs"
	@echo "make check     before a commit: format, clippy, the short tests that mount nothing (CONTRIBUTING.md)"
	@echo "make test      everything that CI checks, with the time of each part"
	@echo "make test-flash   the tests of the engine and of mounts, with every volume on transactional flash"
	@echo "make test-transports   the tests of mounts over io_uring, then over /dev/fuse"
	@echo "make test-kernels   the checks of docs/kernels.md under each of Debian's kernels, in qemu; hours"
	@echo "make test-aarch64   for aarch64: compiled, tests under qemu-user; for musl, and with the oldest Rust: compiled"
	@echo "make soak      the long tests;  make crash  crash exploration;  make shuttle  interleavings;  make fish  planted bugs"
	@echo "make bench     ccfs against ext4 and fuse2fs, 15 minutes;  make bench-all  everything, 3 hours;  make scale  large volumes (docs/performance.md)"
	@echo "make mesobenchmark   a map in a failure-atomic file beside SQLite, LevelDB and Kyoto Cabinet, on ext4 and ccfs"
	@echo "make suites    programs of others and their own tests, without and with ccfs direct; SUITES=\"git sqlite\" for a part"
	@echo "make faults    device errors, flipped bits, full hosts: the table in docs/evidence.md"
	@echo "make fuzz      fuzzing, FUZZ_SECONDS a target (docs/fuzzing.md)"

build:
	@scripts/deps.sh build
	cargo build --release -p ccfs -p ccfs-preload -p ccfs-bench -p ccfs-evidence

mount: build
	@scripts/deps.sh run
	@[ -e "$(IMAGE)" ] || $(CCFS) mkfs -s $(SIZE) "$(IMAGE)"
	@mkdir -p "$(DIR)" 2>/dev/null || true
	@if mountpoint -q "$(DIR)" && stat -f "$(DIR)" >/dev/null 2>&1; then echo "$(DIR) is already mounted"; \
	else $(SUDO) $(CCFS) mount "$(IMAGE)" "$(DIR)" && echo "$(IMAGE) is mounted on $(DIR)"; fi

unmount:
	@if [ -x $(CCFS) ] && grep -q " $(abspath $(DIR)) " /proc/self/mountinfo; then \
	{ $(SUDO) $(CCFS) umount "$(DIR)" || $(SUDO) $(CCFS) fsck -p "$(IMAGE)"; } && echo "$(IMAGE) is plain ext4"; else echo "$(DIR) is not mounted"; fi

PREFIX ?= /usr/local
SBIN ?= /sbin
WHERE = DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" SBIN="$(SBIN)"
install: build
	$(SUDO) env $(WHERE) scripts/install.sh install $(CCFS)
	$(MAKE) --no-print-directory install-libs

.PHONY: uninstall deb
uninstall:
	$(SUDO) env $(WHERE) scripts/install.sh uninstall $(CCFS)

# Debian packages of the program and the C library, in target/.
deb: build
	@scripts/deps.sh deb
	cargo build --release -p ccfs-libccfs
	packaging/sbom.py notices >$(CARGO_TARGET_DIR)/THIRD-PARTY
	NOTICES=$(CARGO_TARGET_DIR)/THIRD-PARTY packaging/deb.sh $(CCFS) $(CARGO_TARGET_DIR)

# A release of the last commit, built in a chroot of the oldest distribution that is promised. DIST_ARGS=--twice: two times, and the bytes
# are compared; DIST_ARGS=--here: without a chroot.
DIST_ARGS ?=
.PHONY: dist dist-try
dist:
	@scripts/deps.sh dist
	$(if $(findstring --here,$(DIST_ARGS)),,$(SUDO)) env "PATH=$$PATH" packaging/dist.sh $(DIST_ARGS) $(CARGO_TARGET_DIR)/dist

# What `make dist` made, in a chroot of each distribution that is promised: the table of docs/results/DATE-install.md.
dist-try:
	@scripts/deps.sh dist
	$(SUDO) packaging/try.sh $(CARGO_TARGET_DIR)/dist

# libccfs with its header, pages and pkg-config file.
install-libs:
	@scripts/deps.sh build
	cargo build --release -p ccfs-libccfs
	$(SUDO) env DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/install-libs.sh $(CARGO_TARGET_DIR)/release

# Before a commit: no root, no mounts. What it leaves out stands in scripts/test.sh.
check:
	@scripts/test.sh check

test:
	@scripts/test.sh

# The tests of mounts over each way to the kernel; `make test` takes the one that mounts take by themselves, and for some of them io_uring as well.
.PHONY: test-transports
test-transports:
	@scripts/deps.sh test
	cargo build --release -p ccfs
	@for way in uring dev; do echo "== transport=$$way"; \
	CCFS_TEST_TRANSPORT=$$way cargo test --release -p ccfs -p ccfs-fuse -p ccfs-tests --test mounted --test life --test ioctls --test status_dir \
	--test streams --test kill9 --test exercise --test posix --test atomic --test pool --test rings --test cold || exit 1; done

# The tests of the engine and of mounts with every volume on transactional flash; `make test` runs a part of them.
.PHONY: test-flash
test-flash:
	@scripts/deps.sh test
	cargo build --release -p ccfs -p ccfs-libccfs
	CCFS_TEST_BACKEND=flash cargo test --release -p ccfs-engine -p ccfs-fuse -p ccfs-tests --tests

# For aarch64 everything is compiled, and the tests that compute run under qemu-user; for musl, and with the oldest Rust that Cargo.toml
# promises, everything is compiled.
.PHONY: test-aarch64
test-aarch64:
	@scripts/targets.sh

# The manual pages of the programs, as `make install` makes them too: man -l target/man/ccfs.8
man: build
	@for program in ccfs ccfs-bench ccfs-crash; do $(dir $(CCFS))$$program man $(CARGO_TARGET_DIR)/man || exit 1; done

# Long runs need patience: a program may take four hours.
soak: export CCFS_TEST_TIMEOUT ?= 14400
# All of examples/recipes, PostgreSQL and a Debian image build with them; needs a Debian mirror.
.PHONY: recipes
recipes: build
	@scripts/deps.sh test
	@scripts/deps.sh recipes
	@for recipe in examples/recipes/[!l]*.sh examples/recipes/l[!i]*.sh; do echo "== $$recipe"; \
	$(SUDO) env CCFS="$(abspath $(CCFS))" $$recipe || exit 1; done

# Other programs' own tests without and with `ccfs direct`: `make suites SUITES="git sqlite"` does a part (scripts/direct-suites.sh). An hour
# and a half to two hours; needs a Debian mirror, and the registries of cargo, pip and npm.
SUITES ?=
.PHONY: suites
suites: build
	@scripts/deps.sh suites
	$(SUDO) env "PATH=$$PATH" "CARGO_HOME=$${CARGO_HOME:-$$HOME/.cargo}" "RUSTUP_HOME=$${RUSTUP_HOME:-$$HOME/.rustup}" \
	scripts/direct-suites.sh "$(abspath $(CCFS))" "$(abspath $(CARGO_TARGET_DIR))/suites" $(SUITES)

SOAK_ARGS ?=
soak:
	@scripts/deps.sh test
	@scripts/deps.sh dist
	cargo build --release --workspace --bins
	cargo run --release -p ccfs-tests --bin ccfs-soak -- $(SOAK_ARGS)
	CCFS_STORE_KILLS=200 cargo test --release -p ccfs --test store -- --nocapture killed
	CCFS_CRASH_RUNS=1000 cargo test --release -p ccfs-crash --test threads -- groups_and_atomic_files
	CCFS_CRASH_RUNS=3000 cargo test --release -p ccfs-crash --test direct -- --skip spots
	$(MAKE) shuttle
	scripts/tsan.sh
	$(MAKE) suites
	scripts/direct-glibc.sh
	$(MAKE) test-kernels
	scripts/targets.sh

# 5,000,000 crash states, going on where an interrupted run was: `make crash CRASH_ARGS="--minutes 30"` does a part.
CRASH_ARGS ?=
CRASH_STATE ?= $(CARGO_TARGET_DIR)/crash.state
crash:
	@scripts/deps.sh build
	CCFS_STORE_SEEDS=30 cargo test --release -p ccfs-remote --test broken_connections
	cargo run --release -p ccfs-crash --bin ccfs-crash-explore -- --complete --state-file $(CRASH_STATE) $(CRASH_ARGS)

# The engine's own code, and that of direct calls, under a scheduler that tries interleavings: `make shuttle SCHEDULES=100000`.
SCHEDULES ?= 2000
shuttle:
	@scripts/deps.sh run
	CCFS_SHUTTLE=$(SCHEDULES) cargo test --release -p ccfs-crash --features shuttle --test interleavings
	CCFS_SHUTTLE=$(SCHEDULES) cargo test --release -p ccfs-fuse --features shuttle --lib direct::interleavings

# Every planted bug of the engine must be found within 20,000 states.
BUGS ?= all
fish:
	@scripts/deps.sh build
	cargo run --release -p ccfs-crash --features planted --bin ccfs-crash-explore -- --bugs $(BUGS)

# The modelled disks beside the papers' figures.
calibrate:
	@scripts/deps.sh build
	cargo build --release -p ccfs -p ccfs-evidence
	$(SUDO) $(CARGO_TARGET_DIR)/release/ccfs-evidence calibrate

# The papers' tables, into docs/evidence.md, with a page for each program and file system in target/evidence. Takes one to two hours.
EVIDENCE_ARGS ?=
evidence:
	@scripts/deps.sh build
	@scripts/deps.sh run
	cargo build --release -p ccfs -p ccfs-evidence
	@needs=$$($(CARGO_TARGET_DIR)/release/ccfs-evidence needs $(EVIDENCE_ARGS)) && scripts/deps.sh packages $$needs
	$(SUDO) $(CARGO_TARGET_DIR)/release/ccfs-evidence tables $(EVIDENCE_ARGS)

# ccfs under the kernels of Debian's suites, in qemu: `make test-kernels KERNELS="6.1 6.12" CHECKS="sync power"` does a part.
# Makes the table in docs/kernels.md. Needs a Debian mirror the first time; 30 to 60 minutes a kernel.
KERNELS ?=
CHECKS ?=
.PHONY: test-kernels
test-kernels:
	@scripts/deps.sh test
	cargo build --release --workspace --bins
	$(SUDO) env "PATH=$$PATH" $(CARGO_TARGET_DIR)/release/ccfs-kernels --kernels "$(KERNELS)" --checks "$(CHECKS)" \
	--into docs/kernels.md

fuzz:
	@scripts/deps.sh build
	@scripts/fuzz.sh

# The AdvFS paper's mesobenchmark on ext4 and ccfs: `make mesobenchmark MESO_ARGS="300 1"` for a short one.
MESO_ARGS ?=
.PHONY: mesobenchmark
mesobenchmark:
	@scripts/deps.sh test
	cargo build --release -p ccfs -p ccfs-libccfs
	@$(SUDO) env CCFS="$(abspath $(CCFS))" CCFS_LIB="$(abspath $(CARGO_TARGET_DIR)/release)" examples/mesobenchmark.sh $(MESO_ARGS)

FAULTS_ARGS ?=
faults:
	@scripts/deps.sh test
	$(SUDO) env "PATH=$$PATH" cargo run --release -p ccfs-faults --bin ccfs-faults -- --into docs/evidence.md $(FAULTS_ARGS)

# ext4, fuse2fs and ccfs, 15 minutes; `make bench-all`: everything, 3 hours, going on where an interrupted run was.
# BENCH_ARGS="--doc FILE" enters the tables in a document (docs/results/README.md). `$(CCFS) bench --quick`: 2 to 3 minutes.
BENCH_ARGS ?=
BENCH_OUT ?= $(CARGO_TARGET_DIR)/bench
bench: build
	@scripts/deps.sh test
	@mkdir -p $(BENCH_OUT)
	$(SUDO) $(CCFS) bench --json $(BENCH_OUT)/bench.json --html $(BENCH_OUT)/bench.html $(BENCH_ARGS)

.PHONY: bench-all
bench-all: build
	@scripts/deps.sh test
	@mkdir -p $(BENCH_OUT)
	$(SUDO) $(CCFS) bench --all --state $(BENCH_OUT)/all.state --json $(BENCH_OUT)/all.json --html $(BENCH_OUT)/all.html $(BENCH_ARGS)

# Tables over powers of ten: directories, files, volumes, streams; an aged volume. Hours; SCALE_ARGS="--part directory,streams" does a part.
SCALE_ARGS ?=
.PHONY: scale
scale: build
	@scripts/deps.sh test
	@mkdir -p $(BENCH_OUT)
	$(SUDO) $(CCFS) bench scale --state $(BENCH_OUT)/scale.state --json $(BENCH_OUT)/scale.json $(SCALE_ARGS)

clean:
	cargo clean
