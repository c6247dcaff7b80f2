//! Write calls of a checkpoint, compared with one call for each block of the tree (the ticket's other proposal: B-tree
//! nodes written in batches).

use stemmadb::{Database, Durability, Options};

use super::{Bench, DOCUMENT_BYTES, Documents, heading};
use crate::Result;
use crate::engine::insert_json;
use crate::harness::{ResultRow, Samples, Unit, WriteCalls};

const DOCUMENT_COUNTS: [usize; 3] = [100, 1_000, 10_000];
/// Size of the tree's blocks.
const BLOCK_BYTES: f64 = 8192.0;

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    for count in DOCUMENT_COUNTS {
        let name = format!("checkpoint of {count} documents: tree writes");
        if !bench.is_selected(&name) {
            continue;
        }
        let (mut ours, mut by_block) = (Samples::default(), Samples::default());
        for _ in 0..bench.scale.repetition_count {
            let written = checkpoint(bench, count)?;
            ours.push_repetition(written.calls as f64);
            by_block.push_repetition((written.bytes as f64 / BLOCK_BYTES).ceil());
        }
        let heading = heading(bench, &name, count, true, Unit::Amount("writes"));
        bench.push(ResultRow::new(heading, &ours, &[("one-by-one", &by_block)]))?;
    }
    Ok(())
}

/// Merges `count` new documents into the tree; returns what this thread wrote meanwhile.
fn checkpoint(bench: &Bench, count: usize) -> Result<WriteCalls> {
    let options = Options::new().durability(Durability::None).background(false);
    let database = Database::open_with(bench.scratch.fresh_path("checkpoint.stemma")?, options)?;
    insert_json(&database, Durability::None, &Documents::make(count, DOCUMENT_BYTES).all())?;
    let (before, bytes_before) = (WriteCalls::of_this_thread()?, database.info()?.tree_bytes);
    database.maintenance().checkpoint()?;
    let written = WriteCalls::of_this_thread()?.since(before);
    let added_bytes = database.info()?.tree_bytes.saturating_sub(bytes_before);
    database.close()?;
    match written.calls {
        0 => Err("a checkpoint wrote nothing on the thread that called it".into()),
        _ if written.bytes < added_bytes => Err("a checkpoint wrote less than it added to the tree".into()),
        _ => Ok(written),
    }
}
