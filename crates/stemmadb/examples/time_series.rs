//! Time series: bulk writes of readings; ranges, sums and groups from the index; hourly statistics from a view.
//!
//! `cargo run --example time_series [DIRECTORY]` (default: a temporary directory) prints
//!
//! ```text
//! 8640 readings
//! garden, second morning: 360 readings, the coldest
//!   21.0 °C at day 2 06:00
//!   21.0 °C at day 2 06:01
//! cellar: above 20 °C for 1054 minutes
//! garden: above 20 °C for 1538 minutes
//! attic: 15.6 °C on average that morning
//! cellar: 21.2 °C on average that morning
//! garden: 26.7 °C on average that morning
//! garden, day 2 10:00: 28.8 to 29.7 °C
//! garden, day 2 11:00: 29.7 to 30.0 °C
//! garden, day 2 12:00: 29.7 to 30.0 °C
//! cellar, both days: 18.0 °C on average of 2880
//! ```
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stemmadb::views::Stats;
use stemmadb::{Collection, Database, Document, Emitter, Reduction, Result, View, field};

const SENSORS: [&str; 3] = ["attic", "cellar", "garden"];
const DAY_SECONDS: u64 = 86_400;
const HOUR_SECONDS: u64 = 3_600;
/// The time between two readings of a sensor.
const STEP_SECONDS: u64 = 60;

#[derive(Serialize, Deserialize)]
struct Reading {
    sensor: String,
    /// Seconds since the beginning.
    at: u64,
    celsius: f64,
}

/// Generates a reading: warmest at noon, with a different range for each sensor.
fn measure(number: usize, at: u64) -> Reading {
    let noon = (at % DAY_SECONDS) as f64 / DAY_SECONDS as f64 * std::f64::consts::TAU;
    let celsius = 15.0 + 3.0 * number as f64 - (1.0 + 4.0 * number as f64) * noon.cos();
    Reading { sensor: SENSORS[number].into(), at, celsius: (celsius * 10.0).round() / 10.0 }
}

/// Inserts the readings of all sensors in a time range, in one transaction with one flush.
fn append(db: &Database, readings: &Collection<Reading>, from: u64, to: u64) -> Result<()> {
    db.write(|tx| {
        let mut readings = readings.within(tx);
        for at in (from..to).step_by(STEP_SECONDS as usize) {
            for number in 0..SENSORS.len() {
                let reading = measure(number, at);
                readings.upsert(&format!("{}:{at:010}", reading.sensor), &reading)?;
            }
        }
        Ok(())
    })
}

/// Statistics of the readings by sensor and hour.
struct Hours;

impl View for Hours {
    type Key = (String, u64);
    type Value = f64;
    type Reduced = Stats;

    fn name(&self) -> &str {
        "hours"
    }

    fn map(&self, document: &Document, rows: &mut Emitter<'_, (String, u64), f64>) -> Result<()> {
        if document.id().as_str().starts_with("readings:") {
            let Reading { sensor, at, celsius } = document.to()?;
            rows.emit((sensor, at / HOUR_SECONDS), celsius);
        }
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::Stats
    }
}

fn main() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let directory = std::env::args_os().nth(1).map_or_else(|| temporary.path().join("climate.stemma"), PathBuf::from);
    let db = Database::open(directory)?;
    let readings = db.collection::<Reading>("readings")?;
    for hour in 0..48 {
        append(&db, &readings, hour * HOUR_SECONDS, (hour + 1) * HOUR_SECONDS)?;
    }
    println!("{} readings", readings.all().count()?);

    // A time range and one sensor: the intersection of two index lookups.
    let morning = field("at").ge(DAY_SECONDS + 6 * HOUR_SECONDS).and(field("at").lt(DAY_SECONDS + 12 * HOUR_SECONDS));
    let in_the_garden = morning.clone().and(field("sensor").eq("garden"));
    println!("garden, second morning: {} readings, the coldest", readings.find(in_the_garden.clone()).count()?);
    for reading in readings.find(in_the_garden).sort("celsius").limit(2).entries()? {
        println!("  {:.1} °C at {}", reading.content.celsius, clock(reading.content.at));
    }

    // Sums, extremes and groups are computed from the index, without reading documents.
    let warm = readings.find(field("celsius").gt(20)).documents();
    for (sensor, count) in warm.group_by("sensor").counts()? {
        println!("{}: above 20 °C for {} minutes", sensor.as_str().unwrap_or("?"), count * STEP_SECONDS / 60);
    }
    for (sensor, summary) in readings.find(morning).documents().group_by("sensor").summaries("celsius")? {
        println!(
            "{}: {:.1} °C on average that morning",
            sensor.as_str().unwrap_or("?"),
            summary.average().unwrap_or(0.0)
        );
    }

    // The view returns the statistics of any range of hours without a scan, however long the range is.
    let hours = db.view(Hours)?;
    for group in hours.query().range(("garden", 34)..("garden", 37)).group()? {
        let ((sensor, hour), stats) = group?;
        let (low, high) = (stats.min.unwrap_or(0.0), stats.max.unwrap_or(0.0));
        println!("{sensor}, {}: {low:.1} to {high:.1} °C", clock(hour * HOUR_SECONDS));
    }
    if let Some(all) = hours.query().prefix(("cellar",)).reduce()? {
        println!("cellar, both days: {:.1} °C on average of {}", all.sum / all.count as f64, all.count);
    }
    Ok(())
}

fn clock(at: u64) -> String {
    let minutes = at / 60;
    format!("day {} {:02}:{:02}", minutes / 1_440 + 1, minutes / 60 % 24, minutes % 60)
}
