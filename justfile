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

# The core benchmark beside SQLite; scale is `small` or `full`.
bench scale="small":
    cargo run --release -p stemmadb-bench -- core --scale {{scale}}
