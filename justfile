# Project recipes; `just --list` shows them. Each one is also an ordinary command.

# All checks required before a change is merged.
ci:
    .ci/run

# Checks that take several builds: the benchmarks, each feature alone, the release build with its demonstration and size.
nightly-builds:
    .ci/builds

# All tests.
test *arguments:
    ./test {{arguments}}

# The README's demonstration.
demo:
    ./demo

# The command for distribution: target/dist/stemma, stripped, and its debug information in target/dist/stemma.debug.
dist:
    cargo build --locked --profile dist --package stemmadb-cli
    objcopy --only-keep-debug target/dist/stemma target/dist/stemma.debug
    objcopy --strip-all --add-gnu-debuglink=target/dist/stemma.debug target/dist/stemma

# The command as one static binary, checked in an empty root directory; needs musl-gcc (`apt-get install musl-tools`).
static:
    .ci/static

# The command for ARM64, which is only built: `apt-get install gcc-aarch64-linux-gnu` for the linker and C compiler.
arm64:
    rustup target add aarch64-unknown-linux-gnu
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        cargo build --locked --release --target aarch64-unknown-linux-gnu --package stemmadb-cli

# The Debian package of the static binary; needs `cargo install cargo-deb --locked`.
deb:
    .ci/deb

# The Debian package is also installed, used and removed; needs root.
nightly-deb:
    .ci/deb --install

# Lints of the Node package, and its tests from an installed package.
node:
    cd crates/stemmadb-node && cargo fmt --check && cargo clippy --locked -- -D warnings
    cargo test -p stemmadb-cli --locked --test packaging -- --nocapture node

# Lints of the Python package, and its tests from an installed wheel.
python:
    cd crates/stemmadb-python && cargo fmt --check && cargo clippy --locked -- -D warnings
    cargo test -p stemmadb-cli --locked --test packaging -- --nocapture python

# The Python package's memory over a million iterations, each of several calls.
nightly-python calls="1000000":
    STEMMA_PYTHON_CALLS={{calls}} cargo test -p stemmadb-cli --locked --test packaging -- --nocapture python

# Benchmark of the Python package beside other embedded databases, and beside the Rust library. `python` is an
# interpreter with the wheel and with pandas; those of tinydb, dataset, sqlite-utils and mongita that it has are compared.
bench-python python="python3" *options:
    cd crates/stemmadb-python && {{python}} bench/compare.py {{options}} \
        --rust "$(cargo run --quiet --locked --release --example figures)"

# A Cassandra cluster on this machine, for tests and measurements: `just cluster up`, `just cluster down`.
cluster *arguments:
    crates/stemmadb-cassandra/cluster {{arguments}}

# Tests of databases whose log is in a Cassandra cluster; `cases` requests with a fault, and as many killed or paused
# owners as `kills`. A cluster must be up.
nightly-cluster cases="10000" kills="300" seconds="300":
    STEMMA_CASSANDRA=127.0.0.1:9042 STEMMA_CLUSTER_CASES={{cases}} STEMMA_CLUSTER_KILLS={{kills}} \
        STEMMA_CLUSTER_SECONDS={{seconds}} \
        cargo test --locked --test cluster --test cluster_faults -- --nocapture --test-threads=1
    STEMMA_CASSANDRA=127.0.0.1:9042 STEMMA_CLUSTER_KILLS={{kills}} \
        cargo test --locked --features stemmadb-cli/cluster --test network cluster:: -- --nocapture --test-threads=1

# The HTTP tests with three servers of a cluster for each, in memory or (`cassandra`) with logs in a Cassandra cluster
# that is up. Tests of what belongs to one process are skipped, and say so. Those with 600 slow clients run alone: when
# the kernel's memory for TCP is used up (`dmesg` says so), it resets connections of other tests, too.
http-cluster kind="memory" filter="":
    STEMMA_CASSANDRA=127.0.0.1:9042 STEMMA_TEST_CLUSTER={{kind}} \
        cargo test --locked --test http -- --skip slow:: {{filter}}
    [ -n "{{filter}}" ] || STEMMA_CASSANDRA=127.0.0.1:9042 STEMMA_TEST_CLUSTER={{kind}} \
        cargo test --locked --test http -- slow:: --test-threads=1

# The library's own suites with the log of every database in a Cassandra cluster that is up, all or those named; then
# those of CouchDB's clients against three servers of it. `cargo test --test clients` says what those need.
nightly-cluster-suites *suites:
    STEMMA_CASSANDRA=127.0.0.1:9042 STEMMA_SUITES="{{suites}}" cargo test --locked --test suites -- --nocapture
    STEMMA_CASSANDRA=127.0.0.1:9042 STEMMA_TEST_CLUSTER=cassandra cargo test --locked --test clients -- --test-threads=1

# Tests of the benchmark program; they need Go and PostgreSQL 15.
test-bench:
    cargo test -p stemmadb-bench --locked

# Benchmark of basic operations against SQLite; scale is `small` or `full`.
bench scale="small":
    cargo run --release -p stemmadb-bench -- core --scale {{scale}}

# Benchmark of Barrel's queries against SQLite, and of anti-patterns; full tables go to target/report.
bench-queries scale="small":
    cargo run --release -p stemmadb-bench -- queries --scale {{scale}} --markdown target/report/queries.md

# Benchmark of a shop against PostgreSQL 15 (`apt-get install postgresql-15`) and SQLite.
# `--bonsaidb` also builds and measures BonsaiDb.
bench-commerce scale="small" *options:
    cargo run --release -p stemmadb-bench -- commerce --scale {{scale}} --markdown target/report/commerce.md {{options}}

# Benchmark of the server with local clients.
bench-http scale="full":
    cargo run --release -p stemmadb-bench -- http --scale {{scale}} --markdown target/report/http.md

# All benchmarks, with a report in target/report. An interrupted run resumes. Small takes some ten minutes, full takes
# hours, most of them for ten runs of each encoding; `--iterations` lowers all repetitions.
bench-all scale="small" *options:
    cargo run --release -p stemmadb-bench -- run --scale {{scale}} --results target/results --name {{scale}} {{options}}
    cargo run --release -p stemmadb-bench -- report target/results/{{scale}}.json target/report

# Pages and plots in docs/, and full tables beside the results file, from a results file.
bench-docs results *options:
    cargo run -p stemmadb-bench -- report {{results}} docs {{options}}

# One database that grows to 5,000,000 documents (about an hour; `--scale huge` has 10,000,000). To include it in the
# pages: `just bench-docs RESULTS --also target/results/growth.json`.
bench-growth scale="full" *options:
    cargo run --release -p stemmadb-bench -- growth --scale {{scale}} --markdown target/report/growth.md \
        --json target/results/growth.json {{options}}

# docs/reliability.md and results/reliability/README.md from recorded test outputs. `just reliability run soak
# power-images` first runs these rows and records their output; without names it runs all of them, for hours.
reliability *run:
    .ci/reliability {{run}}

# Long forms of the tests; each takes minutes. Their outcomes are in docs/reliability.md.
nightly: nightly-builds nightly-files nightly-model nightly-watch nightly-serializability nightly-power nightly-kill nightly-flips nightly-io-errors nightly-syscalls nightly-damage nightly-copies nightly-schedules nightly-queries nightly-views nightly-linearisability nightly-kill-http nightly-kill-wire nightly-partition nightly-simulation nightly-idle-jobs nightly-history nightly-backups nightly-ciphertexts nightly-encrypted nightly-soak nightly-feeds nightly-databases nightly-calm nightly-audit nightly-deb nightly-python nightly-fuzz

# Random operations compared with a naive model, with and without maintenance threads.
nightly-model cases="5000":
    STEMMA_MODEL_CASES={{cases}} STEMMA_MODEL_SEED=$RANDOM cargo test -p stemmadb --test model -- --nocapture
    STEMMA_MODEL_BACKGROUND=1 STEMMA_MODEL_CASES=2000 STEMMA_MODEL_SEED=$RANDOM cargo test -p stemmadb --test model -- --nocapture

# Live queries under random writes, compared with fresh queries.
nightly-watch cases="3000":
    STEMMA_WATCH_CASES={{cases}} STEMMA_WATCH_SEED=$RANDOM cargo test -p stemmadb --test watch -- --nocapture

# Files: power loss, and writing and reading 1 GiB.
nightly-files crashes="3000":
    STEMMA_FILE_CRASHES={{crashes}} cargo test -p stemmadb --test files -- --nocapture
    STEMMA_FILE_BYTES=1073741824 cargo test -p stemmadb --test long_file -- --nocapture

# Serializability of concurrent pessimistic and optimistic transactions.
nightly-serializability seconds="600":
    STEMMA_HISTORY_SECONDS={{seconds}} STEMMA_HISTORY_SEED=$RANDOM cargo test -p stemmadb --test serializability -- --nocapture

# Power loss at any time.
nightly-power images="1000000":
    STEMMA_IMAGES={{images}} cargo test -p stemmadb --lib engine::tests::power_cut -- --nocapture

# kill -9 under load.
nightly-kill cycles="2000":
    STEMMA_KILLS={{cycles}} cargo test -p stemmadb --test kill -- --nocapture

# The database as of earlier sequences, compared with copies taken then.
nightly-history cases="2000":
    STEMMA_HISTORY_CASES={{cases}} STEMMA_HISTORY_SEED=$RANDOM cargo test -p stemmadb --test history -- --nocapture

# Backups, restores, branches and shipments that are interrupted at each step; restores to random sequences.
nightly-backups restores="1000":
    STEMMA_ALL_STEPS=1 STEMMA_RESTORES={{restores}} cargo test -p stemmadb --lib backup::tests -- --nocapture

# Encrypted files whose parts are changed, moved, cut, exchanged, or replayed from an earlier time.
nightly-ciphertexts images="100000":
    STEMMA_CIPHERTEXTS={{images}} STEMMA_CIPHERTEXT_SEED=$RANDOM cargo test -p stemmadb --test ciphertexts -- --nocapture

# The suites about crashes and damage with encrypted databases; the key is that of these tests only.
nightly-encrypted key="abababababababababababababababababababababababababababababababab":
    for verb in model power kill history flips io-errors copies backups; do STEMMA_TEST_KEY={{key}} just nightly-$verb; done

# One flipped bit in the log or the tree.
nightly-flips flips="50000":
    STEMMA_FLIPS={{flips}} cargo test -p stemmadb --test flips -- --nocapture

# Each disk operation fails, once or permanently.
nightly-io-errors:
    STEMMA_FAULT_STRIDE=1 STEMMA_FAULT_SEEDS=3 cargo test -p stemmadb --test io_errors -- --nocapture

# Each system call fails or kills the process, in ten scripts; needs strace.
nightly-syscalls scripts="10":
    STEMMA_SYSCALL_STRIDE=1 STEMMA_SYSCALL_SCRIPTS={{scripts}} cargo test -p stemmadb --test syscalls -- --nocapture

# Damage of every kind: detection by `check`, and salvage of the rest.
nightly-damage damages="2000":
    STEMMA_DAMAGES={{damages}} STEMMA_DAMAGE_SEED=$RANDOM cargo test -p stemmadb --test check -- --nocapture
    STEMMA_SALVAGES={{damages}} STEMMA_SALVAGE_SEED=$RANDOM cargo test -p stemmadb --test salvage -- --nocapture

# Copies combined from files of different times.
nightly-copies copies="10000":
    STEMMA_COPIES={{copies}} STEMMA_COPY_SEED=$RANDOM cargo test -p stemmadb --test copies -- --nocapture

# Thread interleavings of six scenes.
nightly-schedules schedules="20000":
    STEMMA_SCHEDULES={{schedules}} STEMMA_SCHEDULE_SEED=$RANDOM cargo test -p stemmadb --features shuttle --test interleavings -- --nocapture --test-threads 1

# Random queries compared with the naive evaluator, in memory and through a database.
nightly-queries cases="200000":
    STEMMA_QUERY_CASES={{cases}} cargo test -p stemmadb --lib query:: -- --nocapture

# Views compared with freshly built ones, with crashes and failing disks.
nightly-views edits="50000":
    STEMMA_VIEW_EDITS={{edits}} STEMMA_VIEW_SEED=$RANDOM cargo test -p stemmadb --lib view::tests::random -- --nocapture

# Linearizability of clients that replace what they read while their server is killed.
nightly-linearisability seconds="600":
    STEMMA_LINEAR_SECONDS={{seconds}} STEMMA_NETWORK_SEED=$RANDOM cargo test -p stemmadb-cli --test network linear -- --nocapture

# kill -9 of a server while clients of the wire protocol go on.
nightly-kill-wire kills="300":
    STEMMA_KILLS={{kills}} cargo test -p stemmadb-cli --test network wire -- --nocapture

# kill -9 of a server under load.
nightly-kill-http kills="300":
    STEMMA_KILLS={{kills}} STEMMA_NETWORK_SEED=$RANDOM cargo test -p stemmadb-cli --test network kill -- --nocapture

# Random network partitions between three servers.
nightly-partition rounds="500":
    STEMMA_ROUNDS={{rounds}} STEMMA_NETWORK_SEED=$RANDOM cargo test -p stemmadb-cli --test network partition -- --nocapture

# Replication on a simulated network, with and without conflict rules; each seed determines all events.
nightly-simulation seeds="100000":
    STEMMA_SIMULATION_SEEDS={{seeds}} STEMMA_SIMULATION_SEED=$RANDOM cargo test -p stemmadb-server --lib -- simulation::nodes simulation::conflict --nocapture

# Replications that wait for changes: threads and processor time.
nightly-idle-jobs jobs="10000":
    STEMMA_JOBS={{jobs}} cargo test -p stemmadb-cli --test network idle_jobs -- --nocapture

# Mixed load on a server, with its resource usage sampled into target/soak.md.
nightly-soak seconds="3600":
    STEMMA_SOAK_SECONDS={{seconds}} STEMMA_SOAK_TABLE=$PWD/target/soak.md STEMMA_NETWORK_SEED=$RANDOM cargo test -p stemmadb-cli --test network soak -- --nocapture

# Feeds and live queries, this many of each, while documents are written; prints processor time, threads and memory.
nightly-feeds feeds="9900" writes="60000" rate="1000":
    STEMMA_FEEDS={{feeds}} STEMMA_FEED_WRITES={{writes}} STEMMA_FEED_RATE={{rate}} cargo test --release -p stemmadb-cli --test network thousands_of_feeds -- --nocapture

# QUIC beside TCP, both encrypted, in networks that delay and lose packets; prints tables. Needs root.
lossy-network:
    cargo build --release -p stemmadb-client --features quic,tokio --example lossy_network
    for network in "0 0" "10 0" "10 1" "50 0" "50 2"; do set -- $network; printf '\n%s ms each way, %s %% lost\n\n' $1 $2; unshare --net .ci/lossy-network --delay $1 --loss $2 -- target/release/examples/lossy_network; done

# Random questions to federations, compared with one database that has all documents.
nightly-federation cases="100000":
    STEMMA_FEDERATION_CASES={{cases}} STEMMA_FEDERATION_SEED=$RANDOM cargo test --release -p stemmadb-federation --test random -- --nocapture

# Many databases in one server, some of them in constant use; prints memory, descriptors and the time to start.
nightly-databases databases="10000" used="100" descriptors="1024":
    STEMMA_DATABASES={{databases}} STEMMA_DATABASES_USED={{used}} STEMMA_DATABASE_DESCRIPTORS={{descriptors}} STEMMA_DATABASE_WRITES=50000 cargo test --release -p stemmadb-cli --test network many_databases -- --nocapture

# A database that grows past 4 GiB of log without faults; needs twice that disk space.
nightly-calm bytes="4831838208":
    STEMMA_CALM_BYTES={{bytes}} STEMMA_CALM_SEED=$RANDOM cargo test -p stemmadb --test calm -- --nocapture

# Every fuzz target for this many seconds each, by libFuzzer; needs the nightly toolchain and `cargo install cargo-fuzz
# --locked`. New inputs go to target/fuzz; the ordinary tests run the committed corpora (`cargo test fuzz`). No
# sanitizer: the crates deny `unsafe`, and sanitizers make fuzzing several times slower.
nightly-fuzz seconds="1800":
    #!/usr/bin/env bash
    set -euo pipefail
    for target in $(cargo +nightly fuzz list); do
        mkdir -p "target/fuzz/$target"
        cargo +nightly fuzz run --sanitizer none "$target" "target/fuzz/$target" "fuzz/corpus/$target" -- -max_total_time={{seconds}} -timeout=40 -rss_limit_mb=4000 -max_len=4096 2>&1 | tee "target/fuzz/$target.log"
        sed -n "s/^Done \\([0-9]*\\) runs in \\([0-9]*\\) second.*/fuzz: $target: \\1 runs in \\2 s/p" "target/fuzz/$target.log"
    done

# Licenses, sources and known vulnerabilities of dependencies; needs `cargo install cargo-deny --locked`, and fetches
# the advisory database.
nightly-audit:
    cargo deny check
