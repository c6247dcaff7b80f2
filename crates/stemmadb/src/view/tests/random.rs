//! Random edits compared with views of every reduction built from scratch.

use super::{Expected, Tags, from_scratch};
use crate::revision::DocumentId;
use crate::testing::{self, TestStorage};
use crate::value::Value;
use crate::vfs::{Failure, Random};
use crate::view::check::check_rows;
use crate::view::layout::{self, RowKey};
use crate::view::query::Access;
use crate::view::select::RowRange;
use crate::view::{OpenView, partials};
use crate::{Database, Edit, Options, Reduction, Revision};

const REDUCTIONS: [Reduction; 9] = [
    Reduction::None,
    Reduction::Count,
    Reduction::Sum,
    Reduction::Stats,
    Reduction::Min,
    Reduction::Max,
    Reduction::Average,
    Reduction::ApproxCountDistinct,
    Reduction::Custom,
];

/// Maximum number of edits between two checks of a view.
const STEP: u64 = 40;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn body(random: &mut Random) -> Value {
    if random.chance(20) {
        return Value::parse(r#"{"broken": true}"#).unwrap();
    }
    let tag = |random: &mut Random| match random.below(10) {
        0 => "null".to_owned(),
        1 => format!("{}", random.below(50)),
        2 => format!("{}.5", random.below(50)),
        3 => format!("\"tag-{}\"", random.below(300)),
        4 => format!("\"{}\"", "long".repeat(random.below(130) as usize)),
        _ => format!("[\"a{}\", {}, {}]", random.below(5), random.below(4), random.below(20)),
    };
    let count = [0, 1, 1, 2, 9][random.below(5) as usize];
    let tags: Vec<String> = (0..count).map(|_| tag(random)).collect();
    let amount = match random.below(5) {
        0 => "null".to_owned(),
        1 => format!("{}.25", random.below(1000)),
        2 => format!("\"text {}\"", random.below(9)),
        _ => format!("{}", random.below(1_000_000)),
    };
    Value::parse(format!(r#"{{"tags":[{}],"amount":{amount}}}"#, tags.join(","))).unwrap()
}

fn edit(db: &Database, random: &mut Random, document_count: u64) {
    let id = DocumentId::new(format!("document-{}", random.below(document_count))).unwrap();
    let current = db.get(id.as_str()).unwrap().map(|document| *document.revision());
    let edit = match (random.below(10), current) {
        (0 | 1, Some(revision)) => Edit::Delete { id, revision },
        (2, _) => {
            // A conflicting revision, which may or may not win.
            let generation = 1 + random.below(4);
            let digest = |random: &mut Random| u128::from(random.number()) << 64 | u128::from(random.number());
            let revisions = (1..=generation).rev().map(|generation| {
                let text = format!("{generation}-{:032x}", digest(random));
                text.parse::<Revision>().unwrap()
            });
            Edit::Foreign {
                id,
                revisions: revisions.collect(),
                deleted: random.chance(200),
                body: body(random),
                files: Vec::new(),
            }
        }
        _ => Edit::Upsert { id, body: body(random) },
    };
    db.edit(edit).unwrap();
}

fn options(random: &mut Random) -> Options {
    let memory_bytes = [6 << 10, 64 << 10, 4 << 20][random.below(3) as usize];
    let file_rows = [7, 40, 2000][random.below(3) as usize];
    testing::with_small_limits(Options::new().background(false).cache_bytes(0), memory_bytes, 16 << 10, file_rows)
}

fn bound(random: &mut Random, expected: &[Expected]) -> Vec<u8> {
    if expected.is_empty() || random.chance(100) {
        return Vec::new();
    }
    let row = &expected[random.below(expected.len() as u64) as usize];
    match random.below(3) {
        0 => row.key_bytes.clone(),
        1 => layout::row_key(&row.key_bytes, row.number, row.ordinal),
        _ => layout::prefix_end(&row.key_bytes).unwrap(),
    }
}

/// A random range of rows, between keys or among the rows of one key.
fn range(random: &mut Random, expected: &[Expected]) -> RowRange {
    let (from, to) = (bound(random, expected), bound(random, expected));
    let to = if random.chance(100) || to.is_empty() { None } else { Some(to) };
    (from, to)
}

/// Compares all results of the view with the rows built from scratch.
fn compare(db: &Database, view: &OpenView<Tags>, definition: &Tags, random: &mut Random) {
    let expected = from_scratch(db, definition);
    let found: Vec<_> = view.query().rows().unwrap().collect::<crate::Result<_>>().unwrap();
    let found: Vec<_> = found.into_iter().map(|row| (row.id.to_string(), row.key, row.value)).collect();
    let wanted: Vec<_> = expected.iter().map(|row| (row.id.clone(), row.key.clone(), row.value.clone())).collect();
    assert_eq!(found, wanted);
    let reading = view.views.read(&view.materialized, Access::UpdateBefore).unwrap();
    assert!(!reading.is_stale);
    let reducer = reading.reducer.clone();
    let problems = check_rows(&reading.rows, reducer.as_deref(), expected.len() as u64).unwrap();
    assert_eq!(problems, Vec::<String>::new());
    let info = view.info().unwrap();
    assert_eq!(info.row_count, expected.len() as u64);
    let Some(reducer) = reducer else { return };
    for _ in 0..6 {
        let (from, to) = range(random, &expected);
        let mut fold = reducer.begin();
        for row in &expected {
            let own = layout::row_key(&row.key_bytes, row.number, row.ordinal);
            if own >= from && to.as_ref().is_none_or(|to| own < *to) {
                fold.row(RowKey::decode(&own).unwrap().key, &crate::view::reduce::stored_value(&row.value)).unwrap();
            }
        }
        let folded = fold.finish().unwrap();
        let reduced = partials::reduce_range(&reading.rows, &*reducer, &from, to.as_deref()).unwrap();
        let result = |partial: &[u8]| (!partial.is_empty()).then(|| reducer.result(partial).unwrap().to_json());
        assert_eq!(result(&reduced), result(&folded), "{from:?} to {to:?}");
    }
}

/// Runs one database through random edits, reopenings and failures.
fn run_history(seed: u64, edits: u64) {
    let mut random = Random::new(seed);
    let mut place = TestStorage::new(seed);
    let mut db = place.open(options(&mut random)).unwrap();
    let mut definition = Tags::new("tags", REDUCTIONS[random.below(REDUCTIONS.len() as u64) as usize]);
    let document_count = [5, 60, 600][random.below(3) as usize];
    let mut done = 0;
    while done < edits {
        let count = 1 + random.below(STEP);
        (0..count).for_each(|_| edit(&db, &mut random, document_count));
        done += count;
        match random.below(12) {
            0 => db.maintenance().checkpoint().unwrap(),
            1 => drop(db.maintenance().compact().unwrap()),
            2 => {
                db.close().unwrap();
                db = place.open(options(&mut random)).unwrap();
            }
            3 => {
                let image = place.crash_image(random.number());
                drop(db);
                place = image;
                db = place.open(options(&mut random)).unwrap();
            }
            4 => {
                // The disk fails during a merge, possibly followed by a power loss.
                let view = db.view(definition.clone()).unwrap();
                place.fail_commit(1 + random.below(6), Failure::Full, true);
                view.update().ok();
                view.materialized.save().ok();
                let image = place.crash_image(random.number());
                place.heal();
                drop(view);
                if random.chance(700) {
                    drop(db);
                    place = image;
                    db = place.open(options(&mut random)).unwrap();
                }
            }
            5 => definition.version += 1,
            6 => {
                let view = db.view(definition.clone()).unwrap();
                view.query().access(Access::NoUpdate).rows().unwrap().for_each(|row| drop(row.unwrap()));
                view.materialized.save().ok();
            }
            _ => {}
        }
        let view = db.view(definition.clone()).unwrap();
        compare(&db, &view, &definition, &mut random);
    }
    let report = db.maintenance().check().unwrap();
    assert!(report.is_sound(), "{:?}", report.damages);
}

#[test]
fn views_equal_views_built_from_scratch() {
    let (edits, first) = (setting("STEMMA_VIEW_EDITS", 3_000), setting("STEMMA_VIEW_SEED", 1));
    let mut done = 0;
    for seed in first.. {
        let count = [100, 400, 1500][seed as usize % 3].min(edits - done);
        let result = std::panic::catch_unwind(|| run_history(seed, count));
        assert!(result.is_ok(), "wrong with STEMMA_VIEW_SEED={seed}");
        done += count;
        if done >= edits {
            break;
        }
    }
}
