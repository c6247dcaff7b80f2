//! The table of experiments: what each one runs, and how its page and plots are built.

use std::path::Path;

use crate::experiments::{Bench, commerce};
use crate::harness::{Figure, Results};
use crate::report::charts;
use crate::{Result, engine};

/// One experiment with its page and plots.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// What it measures, for the overview.
    pub(crate) title: &'static str,
    /// Values of `ResultRow::experiment` that belong to this command.
    pub(crate) experiments: &'static [&'static str],
    pub(crate) run: fn(&mut Bench) -> Result<()>,
    pub(crate) settings: fn() -> String,
    /// Hand-written prose at the top of the experiment's page.
    pub(crate) prose: &'static str,
    /// Formats the full tables after an opening text, in which `{command}` is replaced.
    pub(crate) page: fn(&Results, &str, &str) -> String,
    /// The experiment's plots with their file names.
    pub(crate) plots: fn(&Results) -> Vec<(String, Figure)>,
    /// Approximate duration in seconds at small and at full scale, for the progress estimate.
    pub(crate) seconds: (u64, u64),
    /// Whether `run` includes it without being asked.
    pub(crate) is_in_default_run: bool,
}

const CORE: Command = Command {
    name: "core",
    title: "inserts, reads, simple queries, space",
    experiments: &["core"],
    run: Bench::core,
    settings: || engine::SETTINGS.to_owned(),
    prose: include_str!("pages/core.md"),
    page: Results::to_markdown,
    plots: |_| Vec::new(),
    seconds: (100, 600),
    is_in_default_run: true,
};

/// All experiments, in the order in which `run` executes them.
pub(crate) const COMMANDS: [Command; 14] = [
    CORE,
    Command {
        name: "live",
        title: "live queries and notifications",
        experiments: &["live"],
        run: Bench::live,
        prose: include_str!("pages/live.md"),
        seconds: (40, 350),
        ..CORE
    },
    Command {
        name: "queries",
        title: "Barrel's queries and anti-patterns",
        experiments: &["queries", "anti-patterns"],
        run: Bench::queries,
        prose: include_str!("pages/queries.md"),
        plots: charts::queries,
        seconds: (90, 260),
        ..CORE
    },
    Command {
        name: "barrel",
        title: "the rest of Barrel's suite",
        experiments: &["barrel"],
        run: Bench::barrel,
        settings: || {
            "`Durability::None` on both sides; the server with default settings, clients on this machine".to_owned()
        },
        prose: include_str!("pages/barrel.md"),
        seconds: (20, 30),
        ..CORE
    },
    Command {
        name: "views",
        title: "sums of key ranges",
        experiments: &["views"],
        run: Bench::views,
        prose: include_str!("pages/views.md"),
        plots: charts::views,
        seconds: (20, 20),
        ..CORE
    },
    Command {
        name: "encodings",
        title: "record encodings on bbolt and LMDB",
        experiments: &["encodings"],
        run: Bench::encodings,
        settings: || "`Durability::None`, bbolt's `NoSync` and LMDB's `MDB_NOSYNC`; bbolt 1.5.0, in Go".to_owned(),
        prose: include_str!("pages/encodings.md"),
        plots: charts::encodings,
        seconds: (120, 23_000),
        ..CORE
    },
    Command {
        name: "commerce",
        title: "a shop, with PostgreSQL and SQLite",
        experiments: &["commerce"],
        run: Bench::commerce,
        settings: engine::shop::settings,
        prose: include_str!("pages/commerce.md"),
        page: commerce::page,
        plots: commerce::plots,
        seconds: (100, 480),
        ..CORE
    },
    Command {
        name: "batches",
        title: "batches and group commit",
        experiments: &["batches"],
        run: Bench::batches,
        settings: || "`Durability::Sync` where the row says `sync`, else `Durability::None`".to_owned(),
        prose: include_str!("pages/batches.md"),
        plots: charts::batches,
        seconds: (60, 40),
        ..CORE
    },
    Command {
        name: "caches",
        title: "lookups with and without caches",
        experiments: &["caches"],
        run: Bench::caches,
        settings: || "`Durability::None`; `cache_bytes` by mode".to_owned(),
        prose: include_str!("pages/caches.md"),
        plots: charts::caches,
        seconds: (20, 180),
        ..CORE
    },
    Command {
        name: "http",
        title: "the server",
        experiments: &["http"],
        run: Bench::http,
        settings: || {
            "the server with default settings, `Durability::Sync`; clients are threads with persistent connections"
                .to_owned()
        },
        prose: include_str!("pages/http.md"),
        plots: charts::http,
        seconds: (60, 40),
        ..CORE
    },
    Command {
        name: "history",
        title: "the past, backups, branches",
        experiments: &["history"],
        run: Bench::history,
        settings: || "`Durability::None`; SQLite: as elsewhere, 15 indexes".to_owned(),
        prose: include_str!("pages/history.md"),
        seconds: (60, 600),
        ..CORE
    },
    Command {
        name: "many",
        title: "many databases as one",
        experiments: &["many"],
        run: Bench::many,
        settings: || "`Durability::None`; the server with default settings besides".to_owned(),
        prose: include_str!("pages/many.md"),
        seconds: (60, 600),
        ..CORE
    },
    Command {
        name: "cluster",
        title: "the log in a Cassandra cluster",
        experiments: &["cluster"],
        run: Bench::cluster,
        settings: || "Cassandra 5.0.9, `paxos_variant: v2`; all options default".to_owned(),
        prose: include_str!("pages/cluster.md"),
        seconds: (200, 600),
        is_in_default_run: false,
        ..CORE
    },
    Command {
        name: "growth",
        title: "cost by number of documents",
        experiments: &["growth"],
        run: Bench::growth,
        settings: || {
            "`Durability::Sync` and all other options default; SQLite: as elsewhere, synchronous FULL".to_owned()
        },
        prose: include_str!("pages/growth.md"),
        plots: charts::growth,
        seconds: (240, 4_000),
        is_in_default_run: false,
        ..CORE
    },
];

impl Command {
    /// Returns the command called `name`.
    pub(crate) fn by_name(name: &str) -> Option<&'static Command> {
        COMMANDS.iter().find(|command| command.name == name)
    }

    /// Writes the plots into `directory` as SVG.
    pub(crate) fn write_plots(&self, results: &Results, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        for (name, figure) in (self.plots)(results) {
            let file = directory.join(format!("{name}.svg"));
            std::fs::write(&file, figure.to_svg())
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        Ok(())
    }
}
