//! Everything that needs no PostgreSQL, on so few shoppers that its figures mean nothing.

use super::*;
use crate::experiments::tests::tiny;

const EMBEDDED: [Contender; 2] = [Contender::Stemma, Contender::Sqlite];

#[test]
fn all_agree_and_every_row_is_on_the_page_and_in_the_plots() {
    let mut bench = tiny(&[]);
    Commerce::new(&mut bench, None, &EMBEDDED, "").run(&SIZES[..1]).unwrap();
    let rows = bench.results.rows();
    // Six operations by three numbers of agents, nine totals, three of everything, the load.
    assert_eq!(rows.len(), 18 + 9 + 3 + 1);
    assert!(rows.iter().all(|row| row.ours.p50 > 0.0 && row.peers["sqlite"].p50 > 0.0));
    let bounded = |row: &&Row| row.peers.contains_key(BARE_FLUSH);
    assert!(rows.iter().filter(bounded).all(|row| row.row.ends_with("1 agent")));
    // Four operations that write, three totals, everything.
    assert_eq!(rows.iter().filter(bounded).count(), 4 + 3 + 1);
    let text = page(&bench.results, "", "the command");
    assert_eq!(text.lines().filter(|line| line.contains(" agent") && line.starts_with("| ")).count(), 18 + 9 + 3);
    let plots: BTreeMap<String, crate::harness::Figure> = plots(&bench.results).into_iter().collect();
    for line in text.lines().filter_map(|line| line.strip_prefix("![")) {
        let file = line.split_once("(plots/").unwrap().1.trim_end_matches(".svg)");
        let svg = plots[file].to_svg();
        assert!(svg.contains(">stemma<") && svg.contains(">sqlite<") && !svg.contains("NaN"), "{file}");
    }
}

#[test]
fn a_wrong_answer_is_found() {
    let bench = tiny(&[]);
    let (stock, plans) = SIZES[0].generate(SEED, &WRITE_HEAVY, 10);
    let (shop, _) = Contender::Stemma.open(&bench.place.fresh("shop").unwrap(), None, &stock).unwrap();
    serve::verify(&*shop, &stock, &plans).unwrap();
    // The same shoppers again: a shop that has been open already is not as it should be.
    let mut desk = Desk::open(&*shop, 1).unwrap();
    desk.serve(&stock, &plans).unwrap();
    let error = desk.close(&stock, &plans).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.starts_with("expected"), "{error}");
}
