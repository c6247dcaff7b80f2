//! The commands: what each measures, and what its page and its plots are made of.

use std::path::Path;

use crate::experiments::{Bench, commerce};
use crate::harness::{Figure, Results};
use crate::report::charts;
use crate::{Result, engine};

/// A command: what it runs, and what it shows.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// What its rows say that they are of.
    pub(crate) experiments: &'static [&'static str],
    pub(crate) run: fn(&mut Bench) -> Result<()>,
    pub(crate) settings: fn() -> String,
    /// The prose that its page begins with.
    pub(crate) opening: &'static str,
    pub(crate) page: fn(&Results, &str, &str) -> String,
    /// Its plots, by their file names.
    pub(crate) plots: fn(&Results) -> Vec<(String, Figure)>,
    /// About how many seconds it takes, small and full: for those who wait.
    pub(crate) seconds: (u64, u64),
}

const PLAIN: Command = Command {
    name: "core",
    experiments: &["core"],
    run: Bench::fundamentals,
    settings: || engine::SETTINGS.to_owned(),
    opening: include_str!("pages/core.md"),
    page: Results::to_markdown,
    plots: |_| Vec::new(),
    seconds: (100, 600),
};

/// All of them, in the order of a run.
pub(crate) const COMMANDS: [Command; 10] = [
    PLAIN,
    Command { name: "live", experiments: &["live"], run: Bench::live, seconds: (40, 350), ..PLAIN },
    Command {
        name: "queries",
        experiments: &["queries", "what not to do"],
        run: Bench::queries,
        opening: include_str!("pages/queries.md"),
        plots: charts::queries,
        seconds: (90, 260),
        ..PLAIN
    },
    Command {
        name: "barrel",
        experiments: &["barrel"],
        run: Bench::barrel,
        settings: || "`Durability::None` on both sides; the server as it starts, clients on this machine".to_owned(),
        opening: include_str!("pages/barrel.md"),
        seconds: (20, 30),
        ..PLAIN
    },
    Command {
        name: "views",
        experiments: &["views"],
        run: Bench::views,
        opening: include_str!("pages/views.md"),
        plots: charts::views,
        seconds: (20, 20),
        ..PLAIN
    },
    Command {
        name: "encodings",
        experiments: &["encodings"],
        run: Bench::encodings,
        settings: || {
            "`Durability::None` beside bbolt's `NoSync` and LMDB's `MDB_NOSYNC`; bbolt 1.5.0, in Go".to_owned()
        },
        opening: include_str!("pages/encodings.md"),
        plots: charts::encodings,
        seconds: (60, 3_200),
        ..PLAIN
    },
    Command {
        name: "commerce",
        experiments: &["commerce"],
        run: Bench::commerce,
        settings: engine::shop::settings,
        opening: include_str!("pages/commerce.md"),
        page: commerce::page,
        plots: commerce::plots,
        seconds: (100, 480),
    },
    Command {
        name: "batches",
        experiments: &["batches"],
        run: Bench::batches,
        settings: || "`Durability::Sync` where the row says so, else `Durability::None`".to_owned(),
        opening: include_str!("pages/batches.md"),
        plots: charts::batches,
        seconds: (60, 40),
        ..PLAIN
    },
    Command {
        name: "caches",
        experiments: &["caches"],
        run: Bench::caches,
        settings: || "`Durability::None`; `cache_bytes` as the page says".to_owned(),
        opening: include_str!("pages/caches.md"),
        plots: charts::caches,
        seconds: (20, 180),
        ..PLAIN
    },
    Command {
        name: "http",
        experiments: &["http"],
        run: Bench::http,
        settings: || {
            "the server as it starts, `Durability::Sync`; clients are threads beside it that keep their connections"
                .to_owned()
        },
        opening: include_str!("pages/http.md"),
        plots: charts::http,
        seconds: (60, 40),
        ..PLAIN
    },
];

impl Command {
    /// The command of this name.
    pub(crate) fn of(name: &str) -> Option<&'static Command> {
        COMMANDS.iter().find(|command| command.name == name)
    }

    /// Writes its plots into `directory`, as SVG.
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
