//! How long appends of different sizes take: `cargo run --example appends -- 127.0.0.1:9042`.

use std::time::Instant;

use stemmadb::log_storage::{FileId, LogStorage};
use stemmadb_cassandra::{Cluster, ClusterOptions};
use uuid::Uuid;

fn main() -> std::io::Result<()> {
    let node = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9042".to_owned());
    let cluster = Cluster::connect(ClusterOptions::new([node], "stemma_appends"))?;
    for _ in 0..2 {
        for kib in [1, 4, 16, 24, 32, 48, 64, 128, 256, 1024] {
            let log = cluster.log(&Uuid::new_v4().simple().to_string());
            log.take_over()?;
            let (file, bytes) = (FileId(Uuid::new_v4()), vec![7; kib << 10]);
            let mut times: Vec<f64> = Vec::new();
            for number in 0..40 {
                let begun = Instant::now();
                log.append(file, number * bytes.len() as u64, &bytes)?;
                times.push(begun.elapsed().as_secs_f64() * 1_000.0);
            }
            times.sort_by(f64::total_cmp);
            let median = times[times.len() / 2];
            println!(
                "{kib:>5} KiB: {median:6.2} ms, {:6.1} MB/s, slowest {:.1} ms",
                kib as f64 / 1.024 / median,
                times[39]
            );
        }
    }
    Ok(())
}
