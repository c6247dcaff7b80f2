//! Compares views read within transactions with views built from scratch of the documents that the transaction sees.

use super::{Tags, rows_of};
use crate::options::Clock;
use crate::read::Snapshot;
use crate::revision::DocumentId;
use crate::testing::{self, TestStorage};
use crate::value::Value;
use crate::vfs::Random;
use crate::view::check::check_rows;
use crate::view::{OpenView, ViewSession, transaction};
use crate::{Database, Edit, Expiry, Options, Reduction, Refresh};

const BEGINNING: i64 = 1_000_000_000_000;

fn json(text: &str) -> Value {
    Value::parse(text).unwrap()
}

fn body(random: &mut Random) -> Value {
    let ends = match random.below(3) {
        0 => format!(r#","ends":{}"#, BEGINNING / 1000 - 5 + random.below(60) as i64),
        _ => String::new(),
    };
    let broken = if random.chance(30) { r#","broken":true"# } else { "" };
    json(&format!(
        r#"{{"tags":["a{}",{},{}],"amount":{}{ends}{broken}}}"#,
        random.below(40),
        random.below(40),
        random.below(4),
        random.below(100)
    ))
}

fn edit(random: &mut Random, mut current: impl FnMut(&str) -> Option<crate::Revision>) -> Edit {
    let id = DocumentId::new(format!("d{}", random.below(40))).unwrap();
    match (random.below(4), current(id.as_str())) {
        (0, Some(revision)) => Edit::Delete { id, revision },
        _ => Edit::Upsert { id, body: body(random) },
    }
}

/// Queries the view within the session, and compares all results.
fn compare<S: ViewSession>(view: &OpenView<Tags>, definition: &Tags, session: &mut S, snapshot: &Snapshot) {
    let expected = rows_of(snapshot, definition);
    let found: Vec<_> = view.query().within(session).rows().unwrap().map(|row| row.unwrap()).collect();
    let found: Vec<_> = found.into_iter().map(|row| (row.id.to_string(), row.key, row.value)).collect();
    let wanted: Vec<_> = expected.iter().map(|row| (row.id.clone(), row.key.clone(), row.value.clone())).collect();
    assert_eq!(found, wanted);
    assert_eq!(view.query().within(session).count().unwrap(), expected.len() as u64);
    let reading = transaction::reading(&view.materialized, session).unwrap();
    let problems = check_rows(&reading.rows, reading.reducer.as_deref(), expected.len() as u64).unwrap();
    assert_eq!(problems, Vec::<String>::new());
    if definition.reduction == Reduction::Sum {
        let sum: u64 = expected.iter().filter_map(|row| row.value.as_u64()).sum();
        let reduced = view.query().within(session).reduce().unwrap();
        assert_eq!(reduced.and_then(|sum| sum.as_u64()).unwrap_or(0), sum);
        let keyed: u64 =
            expected.iter().filter(|row| row.key == Value::from(2)).filter_map(|row| row.value.as_u64()).sum();
        let reduced = view.query().key(2).within(session).reduce().unwrap();
        assert_eq!(reduced.and_then(|sum| sum.as_u64()).unwrap_or(0), keyed);
    }
}

#[test]
fn view_within_a_transaction_includes_its_writes() {
    for seed in 0..16 {
        let mut random = Random::new(seed);
        let clock = Clock::fixed_at(BEGINNING);
        let options = Options::new().background(false).clock(clock.clone());
        let db = TestStorage::new(seed).open(testing::with_small_limits(options, 64 << 10, 16 << 10, 40)).unwrap();
        db.expiration().add_rule(Expiry::at("ends")).unwrap();
        let refresh = if seed % 4 == 3 { Refresh::Eager } else { Refresh::Lazy };
        let reduction = [Reduction::Sum, Reduction::Custom, Reduction::None][seed as usize % 3];
        let definition = Tags { refresh, ..Tags::new("tags", reduction) };
        let view = db.view(definition.clone()).unwrap();
        let edits = |random: &mut Random| {
            for _ in 0..random.below(30) {
                let one = edit(random, |id| db.get(id).unwrap().map(|document| *document.revision()));
                // An eager view refuses documents that can't be mapped.
                db.edit(one).ok();
            }
        };
        for round in 0..12 {
            edits(&mut random);
            if round > 2 && random.chance(500) {
                view.update().unwrap();
            }
            clock.set(clock.now_ms() + random.below(3_000) as i64);
            let written = db.write(|tx| {
                for _ in 0..4 {
                    compare(&view, &definition, tx, &tx.snapshot()?);
                    for _ in 0..random.below(6) {
                        let one = edit(&mut random, |id| tx.get(id).unwrap().map(|document| *document.revision()));
                        tx.edit(one)?;
                    }
                }
                compare(&view, &definition, tx, &tx.snapshot()?);
                Ok(())
            });
            assert!(written.is_ok() || refresh == Refresh::Eager, "{written:?}");
            let mut runs = 0;
            let tried = db.optimistic(|tx| {
                runs += 1;
                for _ in 0..3 {
                    let seen = tx.transaction().snapshot()?;
                    compare(&view, &definition, tx, &seen);
                    if runs == 1 {
                        // Other writers proceed, and the view moves ahead of the attempt.
                        edits(&mut random);
                        view.query().count()?;
                        let seen = tx.transaction().snapshot()?;
                        compare(&view, &definition, tx, &seen);
                    }
                    let one = edit(&mut random, |id| tx.get(id).unwrap().map(|document| *document.revision()));
                    tx.edit(one)?;
                }
                Ok(())
            });
            assert!(tried.is_ok() || refresh == Refresh::Eager, "{tried:?}");
            assert_eq!(super::from_scratch(&db, &definition).len() as u64, view.query().count().unwrap());
        }
    }
}

#[test]
fn attempt_depends_only_on_documents_with_rows() {
    let db = Database::in_memory();
    let view = db.view(Tags::new("tags", Reduction::Sum)).unwrap();
    db.insert("there", &json(r#"{"tags":["a"],"amount":1}"#)).unwrap();
    let runs_with = |interfere: &dyn Fn()| {
        let mut runs = 0;
        let sum = db.optimistic(|tx| {
            runs += 1;
            let sum = view.query().within(tx).reduce()?;
            if runs == 1 {
                interfere();
            }
            tx.upsert("sum", &json(r#"{"seen":true}"#))?;
            Ok(sum.and_then(|sum| sum.as_u64()).unwrap_or(0))
        });
        (runs, sum.unwrap())
    };
    assert_eq!(runs_with(&|| ()), (1, 1));
    assert_eq!(runs_with(&|| _ = db.upsert("other", &json(r#"{"amount":7}"#)).unwrap()), (1, 1));
    assert_eq!(runs_with(&|| _ = db.upsert("more", &json(r#"{"tags":["b"],"amount":2}"#)).unwrap()), (2, 3));
    assert_eq!(runs_with(&|| _ = db.upsert("there", &json(r#"{"tags":[]}"#)).unwrap()), (2, 2));
    assert_eq!(runs_with(&|| _ = db.upsert("broken", &json(r#"{"broken":true}"#)).unwrap()), (2, 2));
}

#[test]
fn reading_within_a_transaction_stores_nothing() {
    let db = Database::in_memory();
    let view = db.view(Tags::new("tags", Reduction::Count)).unwrap();
    let given_up = db.write(|tx| {
        tx.insert("never", &json(r#"{"tags":["a"],"amount":1}"#))?;
        assert_eq!(view.query().within(tx).count()?, 1);
        Err::<(), _>(crate::Error::invalid("given up"))
    });
    assert!(given_up.is_err());
    assert_eq!(view.query().count().unwrap(), 0);
}
