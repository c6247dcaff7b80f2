//! Tests of the shop experiment that need no PostgreSQL.

use super::*;
use crate::experiments::tests::tiny;

const EMBEDDED: [Contender; 2] = [Contender::Stemma, Contender::Sqlite];

#[test]
fn engines_agree_and_every_row_is_reported() {
    let mut bench = tiny(&[]);
    Commerce::new(&mut bench, None, &EMBEDDED, "").run(&SIZES[..1]).unwrap();
    let rows = bench.results.rows();
    // 6 operations × 3 numbers of agents, 9 totals, 3 grand totals, 1 load.
    assert_eq!(rows.len(), 18 + 9 + 3 + 1);
    assert!(rows.iter().all(|row| row.ours.p50 > 0.0 && row.peers["sqlite"].p50 > 0.0));
    let bounded = |row: &&ResultRow| row.peers.contains_key(BARE_FLUSH);
    assert!(rows.iter().filter(bounded).all(|row| row.row.ends_with("1 agent")));
    // 4 writing operations, 3 totals, 1 grand total.
    assert_eq!(rows.iter().filter(bounded).count(), 4 + 3 + 1);
    let text = page(&bench.results, "", "the command");
    assert_eq!(text.lines().filter(|line| line.contains(" agent") && line.starts_with("| ")).count(), 18 + 9 + 3);
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
    let (shop, _) = Contender::Stemma.open(&bench.scratch.fresh_path("shop").unwrap(), None, &stock).unwrap();
    serve::verify(&*shop, &stock, &plans).unwrap();
    // Serving the same shoppers twice must be detected as a wrong state.
    let mut session = ShopSession::open(&*shop, 1).unwrap();
    session.serve(&stock, &plans).unwrap();
    let error = session.close(&stock, &plans).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.starts_with("expected"), "{error}");
}
