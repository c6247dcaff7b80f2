//! Answers of federations of embedded members equal those of one database, for random documents and questions.

mod cases;

use cases::{Random, compare, fill, seeds};
use stemmadb::Database;
use stemmadb_client::AnyDatabase;
use stemmadb_federation::Federation;

/// The number of questions; `STEMMA_FEDERATION_CASES` replaces it.
const CASES: u64 = 4_000;
/// The questions about the same documents.
const ROUND: u64 = 40;

#[test]
fn answers_equal_those_of_one_database() {
    for seed in seeds(CASES, ROUND) {
        let mut random = Random(seed);
        random.below(2);
        let count = 1 + random.below(if seed % 8 == 0 { 16 } else { 5 }) as usize;
        let databases: Vec<Database> = (0..count).map(|_| Database::in_memory()).collect();
        let members: Vec<AnyDatabase> = databases.iter().cloned().map(AnyDatabase::from).collect();
        let is_disjoint = random.below(3) == 0;
        let all = Federation::over(members.iter().cloned()).unwrap().disjoint(is_disjoint);
        let whole = Database::in_memory();
        println!("seed {seed}: {count} members, disjoint: {is_disjoint}");
        for turn in 0..ROUND {
            // Writes between the questions, so that what is known about common documents changes.
            if turn % 10 == 0 {
                let writes = if turn == 0 { 80 } else { 10 };
                fill(&mut random, &members, is_disjoint, writes);
                for db in &databases {
                    if random.below(2) == 0 {
                        db.maintenance().checkpoint().unwrap();
                    }
                    db.replicate_to(&whole).unwrap();
                }
            }
            compare(&mut random, &all, &whole);
        }
    }
}
