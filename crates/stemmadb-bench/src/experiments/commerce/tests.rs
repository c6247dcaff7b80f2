//! Tests of the shop experiment that need no PostgreSQL.

use super::*;
use crate::experiments::tests::tiny;
use crate::workload::shop::{OPERATIONS, SIZES};

const EMBEDDED: [Contender; 2] = [Contender::Stemma, Contender::Sqlite];

#[test]
fn engines_agree_and_every_row_is_reported() {
    let mut bench = tiny(&[]);
    Commerce::new(&mut bench, Programs::default(), &EMBEDDED, "").run(&SIZES[..1]).unwrap();
    let rows = bench.results.rows();
    let agents = agent_counts(bench.results.core_count()).len();
    // 9 totals, 3 grand totals, 1 load, and the operations that ten shoppers do; those who write do all of them.
    let operations: Vec<&ResultRow> = rows.iter().filter(|row| row.note.is_some()).collect();
    assert_eq!(rows.len(), operations.len() + 3 * agents + agents + 1);
    let of_plan = |plan: &str| operations.iter().filter(|row| row.row.contains(plan)).count();
    assert_eq!(of_plan(" small writeheavy, "), OPERATIONS.len() * agents);
    assert_eq!(of_plan(" small balanced, ") % agents + of_plan(" small readheavy, ") % agents, 0);
    assert!(operations.iter().all(|row| [row.ours, row.peers["sqlite"]].iter().all(|one| {
        let (mean, minimum, quartiles) = (one.mean.unwrap(), one.minimum.unwrap(), one.quartiles.unwrap());
        0.0 < minimum && minimum <= quartiles[0] && quartiles[0] <= quartiles[1] && minimum <= mean
    })));
    assert!(rows.iter().all(|row| row.ours.p50 > 0.0 && row.peers["sqlite"].p50 > 0.0));
    let bounded = |row: &&ResultRow| row.peers.contains_key(BARE_FLUSH);
    assert!(rows.iter().filter(bounded).all(|row| row.row.ends_with("1 agent")));
    // 4 writing operations of each plan that has them, 3 totals, 1 grand total.
    let writes = operations.iter().filter(|row| bounded(row)).count();
    assert!((4..=12).contains(&writes) && rows.iter().filter(bounded).count() == writes + 3 + 1);
    let text = page(&bench.results, "", "the command");
    let lines = text.lines().filter(|line| line.contains(" agent") && line.starts_with("| ")).count();
    assert_eq!(lines, operations.len() + 3 * agents + agents);
    let plots: BTreeMap<String, crate::harness::Figure> = plots(&bench.results).into_iter().collect();
    for (file, figure) in &plots {
        let svg = figure.to_svg();
        assert!(svg.contains(">stemma<") && svg.contains(">sqlite<") && !svg.contains("NaN"), "{file}");
    }
}

#[test]
fn wrong_state_is_detected() {
    let bench = tiny(&[]);
    let (stock, plans) = SIZES[0].generate(SEED, &WRITE_HEAVY, 10);
    let (shop, _) =
        Contender::Stemma.open(&bench.scratch.fresh_path("shop").unwrap(), Programs::default(), &stock).unwrap();
    serve::verify(&*shop, &stock, &plans).unwrap();
    // Serving the same shoppers twice must be detected as a wrong state.
    let mut session = ShopSession::open(&*shop, 1).unwrap();
    session.serve(&stock, &plans).unwrap();
    let error = session.close(&stock, &plans).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.starts_with("expected"), "{error}");
}

#[test]
fn published_plot_shows_the_large_shop_with_two_agents_per_core() {
    let mut bench = tiny(&["large writeheavy"]);
    Commerce::new(&mut bench, Programs::default(), &EMBEDDED, "").run(&SIZES[2..]).unwrap();
    let plots: BTreeMap<String, crate::harness::Figure> = plots(&bench.results).into_iter().collect();
    let figure = &plots["commerce-as-published"];
    let titles: Vec<&str> = figure.panels.iter().map(|panel| panel.title.as_str()).collect();
    let agents = agents(2 * bench.results.core_count());
    assert_eq!(titles, [format!("by name, {agents}"), format!("by id, {agents}")]);
    assert!(figure.panels.iter().all(|panel| panel.series.len() == EMBEDDED.len()));
}

#[test]
#[ignore = "downloads and builds BonsaiDb's 300 crates"]
fn bonsaidb_agrees_embedded_and_by_websocket() {
    let program = BonsaiProgram::build().unwrap();
    let programs = Programs { bonsai: Some(&program), ..Programs::default() };
    for access in [BonsaiAccess::Embedded, BonsaiAccess::WebSocket] {
        let mut bench = tiny(&["small writeheavy"]);
        let contenders = [Contender::Stemma, Contender::Bonsai(access)];
        Commerce::new(&mut bench, programs, &contenders, "").run(&SIZES[..1]).unwrap();
        let rows = bench.results.rows();
        let operations = rows.iter().filter(|row| row.note.is_some()).count();
        assert_eq!(operations, OPERATIONS.len() * agent_counts(bench.results.core_count()).len());
        assert!(rows.iter().all(|row| row.peers[contenders[1].name()].p50 > 0.0));
    }
}
