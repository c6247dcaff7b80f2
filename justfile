# Verbs of the house; `just --list` shows them. Everything here is also an ordinary command.

# What must hold before a change lands.
ci:
    .ci/run

# Every test.
test *arguments:
    ./test {{arguments}}

# The README's first command.
demo:
    ./demo

# The tests of the benchmarks themselves; they want Go and PostgreSQL 15.
test-bench:
    cargo test -p stemmadb-bench --locked

# The core benchmark beside SQLite; scale is `small` or `full`.
bench scale="small":
    cargo run --release -p stemmadb-bench -- core --scale {{scale}}

# Barrel's queries beside SQLite with and without indexes, and what document databases advise against.
bench-queries scale="small":
    cargo run --release -p stemmadb-bench -- queries --scale {{scale}} --markdown docs/benchmarks-queries.md

# A shop beside PostgreSQL 15 (`apt-get install postgresql-15`) and SQLite; scale is `small` or `full`.
bench-commerce scale="small":
    cargo run --release -p stemmadb-bench -- commerce --scale {{scale}} --markdown docs/benchmarks-commerce.md

# The server, with clients beside it.
bench-http scale="full":
    cargo run --release -p stemmadb-bench -- http --scale {{scale}} --markdown docs/benchmarks-http.md

# Every experiment, and a report of it in `target/report`; broken off, it goes on where it was. Small takes about eight minutes, full an hour and a half.
bench-all scale="small":
    cargo run --release -p stemmadb-bench -- run --scale {{scale}} --results target/results --name {{scale}}
    cargo run --release -p stemmadb-bench -- report target/results/{{scale}}.json target/report

# The pages and plots of docs/ from the results of a run.
bench-docs results:
    cargo run --release -p stemmadb-bench -- report {{results}} docs

# docs/reliability.md from what the long tests said, which is kept in results/reliability; `just reliability run soak power-images` runs
# these rows anew, without names all of them, for hours.
reliability *run:
    .ci/reliability {{run}}

# The long forms of the tests that must never fail; each takes minutes. Their figures are in the tests' own headers and in docs/guide/durability.md.
nightly: nightly-files nightly-model nightly-watch nightly-serializability nightly-power nightly-kill nightly-flips nightly-io-errors nightly-syscalls nightly-damage nightly-copies nightly-schedules nightly-queries nightly-views nightly-linearisability nightly-kill-http nightly-partition nightly-simulation nightly-soak nightly-calm nightly-audit nightly-fuzz

# Random operations against a naive oracle, with and without threads of their own.
nightly-model cases="5000":
    STEMMA_MODEL_CASES={{cases}} STEMMA_MODEL_SEED=$RANDOM cargo test -p stemmadb --test model -- --nocapture
    STEMMA_MODEL_BACKGROUND=1 STEMMA_MODEL_CASES=2000 STEMMA_MODEL_SEED=$RANDOM cargo test -p stemmadb --test model -- --nocapture

# Random writes, and live queries beside the same queries asked afresh.
nightly-watch cases="3000":
    STEMMA_WATCH_CASES={{cases}} STEMMA_WATCH_SEED=$RANDOM cargo test -p stemmadb --test watch -- --nocapture

# Files: losses of power, and 1 GiB in and out.
nightly-files crashes="3000":
    STEMMA_FILE_CRASHES={{crashes}} cargo test -p stemmadb --test files -- --nocapture
    STEMMA_FILE_BYTES=1073741824 cargo test -p stemmadb --test long_file -- --nocapture

# Histories of transactions of both kinds that run at the same time.
nightly-serializability seconds="600":
    STEMMA_HISTORY_SECONDS={{seconds}} STEMMA_HISTORY_SEED=$RANDOM cargo test -p stemmadb --test serializability -- --nocapture

# Losses of power at any moment.
nightly-power images="1000000":
    STEMMA_IMAGES={{images}} cargo test -p stemmadb --lib engine::tests::power_cut -- --nocapture

# kill -9 under load.
nightly-kill cycles="2000":
    STEMMA_KILLS={{cycles}} cargo test -p stemmadb --test kill -- --nocapture

# One flipped bit in log or tree.
nightly-flips flips="50000":
    STEMMA_FLIPS={{flips}} cargo test -p stemmadb --test flips -- --nocapture

# Every failing call of the disk, once and for good.
nightly-io-errors:
    STEMMA_FAULT_STRIDE=1 STEMMA_FAULT_SEEDS=3 cargo test -p stemmadb --test io_errors -- --nocapture

# Every system call fails or kills the process, in ten scripts; needs strace.
nightly-syscalls scripts="10":
    STEMMA_SYSCALL_STRIDE=1 STEMMA_SYSCALL_SCRIPTS={{scripts}} cargo test -p stemmadb --test syscalls -- --nocapture

# Damage of every kind: found by `check`, and what it left salvaged.
nightly-damage damages="2000":
    STEMMA_DAMAGES={{damages}} STEMMA_DAMAGE_SEED=$RANDOM cargo test -p stemmadb --test check -- --nocapture
    STEMMA_SALVAGES={{damages}} STEMMA_SALVAGE_SEED=$RANDOM cargo test -p stemmadb --test salvage -- --nocapture

# Copies put together of files of many moments.
nightly-copies copies="10000":
    STEMMA_COPIES={{copies}} STEMMA_COPY_SEED=$RANDOM cargo test -p stemmadb --test copies -- --nocapture

# Orders in which threads may go on, for each of five scenes.
nightly-schedules schedules="20000":
    STEMMA_SCHEDULES={{schedules}} STEMMA_SCHEDULE_SEED=$RANDOM cargo test -p stemmadb --features shuttle --test interleavings -- --nocapture --test-threads 1

# Queries at random against the naive evaluator, in memory and through a whole database.
nightly-queries cases="200000":
    STEMMA_QUERY_CASES={{cases}} cargo test -p stemmadb --lib query:: -- --nocapture

# Views beside views made from scratch, through crashes and failing disks.
nightly-views edits="50000":
    STEMMA_VIEW_EDITS={{edits}} STEMMA_VIEW_SEED=$RANDOM cargo test -p stemmadb --lib view::tests::random -- --nocapture

# Histories of clients that replace what they read, while their server is killed.
nightly-linearisability seconds="600":
    STEMMA_LINEAR_SECONDS={{seconds}} STEMMA_NETWORK_SEED=$RANDOM cargo test -p stemmadb-cli --test network linear -- --nocapture

# kill -9 of a server under load.
nightly-kill-http kills="300":
    STEMMA_KILLS={{kills}} STEMMA_NETWORK_SEED=$RANDOM cargo test -p stemmadb-cli --test network kill -- --nocapture

# Three servers, the wires between them cut at random.
nightly-partition rounds="500":
    STEMMA_ROUNDS={{rounds}} STEMMA_NETWORK_SEED=$RANDOM cargo test -p stemmadb-cli --test network partition -- --nocapture

# Replication on a network that is made up: each seed is a course of events of its own.
nightly-simulation seeds="100000":
    STEMMA_SIMULATION_SEEDS={{seeds}} STEMMA_SIMULATION_SEED=$RANDOM cargo test -p stemmadb-server --lib simulation::nodes -- --nocapture

# Mixed load on a server, with what it takes up sampled into a table.
nightly-soak seconds="3600":
    STEMMA_SOAK_SECONDS={{seconds}} STEMMA_SOAK_TABLE=$PWD/target/soak.md STEMMA_NETWORK_SEED=$RANDOM cargo test -p stemmadb-cli --test network soak -- --nocapture

# A database that grows past 4 GiB of log without faults; takes that much room, and as much again for a while.
nightly-calm bytes="4831838208":
    STEMMA_CALM_BYTES={{bytes}} STEMMA_CALM_SEED=$RANDOM cargo test -p stemmadb --test calm -- --nocapture

# Every fuzz target for so many seconds each, by libFuzzer: needs the nightly toolchain and `cargo install cargo-fuzz --locked`. What is found
# beyond the kept corpora goes to target/fuzz; the ordinary tests run the kept ones (`cargo test fuzz`). Without a sanitizer: there is no
# unsafe code here that one could find wrong, and it makes everything several times slower.
nightly-fuzz seconds="1800":
    #!/usr/bin/env bash
    set -euo pipefail
    for target in $(cargo +nightly fuzz list); do
        mkdir -p "target/fuzz/$target"
        cargo +nightly fuzz run --sanitizer none "$target" "target/fuzz/$target" "fuzz/corpus/$target" -- -max_total_time={{seconds}} -timeout=40 -rss_limit_mb=4000 -max_len=4096 2>&1 | tee "target/fuzz/$target.log"
        sed -n "s/^Done \\([0-9]*\\) runs in \\([0-9]*\\) second.*/fuzz: $target: \\1 runs in \\2 s/p" "target/fuzz/$target.log"
    done

# Licences, sources and known vulnerabilities of what is depended on: needs `cargo install cargo-deny --locked`, and fetches the advisories.
nightly-audit:
    cargo deny check
