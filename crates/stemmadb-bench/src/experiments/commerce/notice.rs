//! Notification latency for new carts: a live query over the wire protocol and over a WebSocket in Stemma,
//! LISTEN/NOTIFY in PostgreSQL.

use std::time::Instant;

use postgres::fallible_iterator::FallibleIterator;
use serde_json::json;
use stemmadb::{DeltaEvent, field};
use stemmadb_client::RemoteWatch;

use super::Bench;
use crate::Result;
use crate::engine::shop::{
    PostgresServer, PostgresShop, PostgresVariant, Shop as _, StemmaHttpShop, StemmaWireShop, Transport,
};
use crate::harness::{Contender, Heading, ResultRow, Samples, Unit, measure_row};
use crate::server::Connection;
use crate::workload::shop::Stock;

const NAME: &str = "network notification: new cart, from request to another client's notification";
/// Carts per turn.
const CART_COUNT: usize = 50;

pub(super) fn run(bench: &mut Bench, server: &PostgresServer, stock: &Stock) -> Result<()> {
    if !bench.is_selected(NAME) {
        return Ok(());
    }
    let by_wire = StemmaWireShop::open(&bench.scratch.fresh_path("shop-wire-notices")?, stock)?;
    let mut watch = by_wire.connect()?.watch(field("_id").begins_with("cart:"))?;
    let writer = by_wire.connect()?;
    let empty = json!({"customer_id": null, "product_ids": []});
    let mut wire_number = 0;
    let mut wire = |samples: &mut Samples| -> Result<()> {
        for _ in 0..CART_COUNT {
            wire_number += 1;
            let id = format!("cart:noticed-{wire_number}");
            let start = Instant::now();
            let notified = std::thread::scope(|scope| -> Result<_> {
                let listening = scope.spawn(|| wait_for_document(&mut watch, &id));
                writer.insert(&id, &empty)?;
                listening.join().map_err(|_| "a client failed")?
            })?;
            samples.push((notified - start).as_nanos() as f64);
        }
        Ok(())
    };
    let ours = StemmaHttpShop::open(&bench.scratch.fresh_path("shop-notices")?, stock)?;
    let endpoint = ours.endpoint();
    // {"_id":{"$beginsWith":"cart:"}}
    let watch = "/shop/_watch?selector=%7B%22_id%22%3A%7B%22%24beginsWith%22%3A%22cart%3A%22%7D%7D&since=now";
    let mut watching = Connection::open(endpoint.address)?;
    watching.upgrade_to_websocket(&endpoint, watch)?;
    let mut writing = Connection::open(endpoint.address)?;
    let mut number = 0;
    let mut http = |samples: &mut Samples| -> Result<()> {
        for _ in 0..CART_COUNT {
            number += 1;
            let id = format!("cart:noticed-{number}");
            let request =
                endpoint.request("PUT", &format!("/shop/{id}"), Some(r#"{"customer_id":null,"product_ids":[]}"#));
            let start = Instant::now();
            let (notified, response) = std::thread::scope(|scope| -> Result<_> {
                let listening = scope.spawn(|| watching.wait_for_change(&id));
                let response = writing.send(&request)?;
                Ok((listening.join().map_err(|_| "a client failed")??, response))
            })?;
            if response.status != 201 {
                return Err(format!("PUT {id}: {}", response.status).into());
            }
            samples.push((notified - start).as_nanos() as f64);
        }
        Ok(())
    };
    let theirs = PostgresShop::open(server, PostgresVariant::Tuned, Transport::Tcp, stock)?;
    let (mut waiting, mut asking) = (theirs.connect()?, theirs.connect()?);
    waiting.batch_execute("LISTEN carts")?;
    let insert = asking.prepare(
        "WITH made AS (INSERT INTO carts (customer_id) VALUES (NULL) RETURNING id) \
         SELECT id, pg_notify('carts', id::text) FROM made",
    )?;
    let mut postgres = |samples: &mut Samples| -> Result<()> {
        for _ in 0..CART_COUNT {
            let start = Instant::now();
            let (notified, made) = std::thread::scope(|scope| -> Result<_> {
                let listening = scope.spawn(|| {
                    let notification = waiting.notifications().blocking_iter().next();
                    notification.map(|notification| (notification, Instant::now()))
                });
                let made: i32 = asking.query_one(&insert, &[])?.get(0);
                Ok((listening.join().map_err(|_| "a client failed")??, made))
            })?;
            let (notification, notified) = notified;
            if notification.map(|notification| notification.payload().to_owned()) != Some(made.to_string()) {
                return Err(format!("it did not hear of cart {made}").into());
            }
            samples.push((notified - start).as_nanos() as f64);
        }
        Ok(())
    };
    let contenders = vec![
        Contender::new("stemma-wire", |_, samples| wire(samples)),
        Contender::new("postgresql-tcp", |_, samples| postgres(samples)),
        Contender::new("stemma-http", |_, samples| http(samples)),
    ];
    let heading = bench.heading(NAME, stock.products.len() as u64, true, Unit::Microseconds);
    let targets = vec![("postgresql-tcp", super::STEP_TARGET)];
    let heading = Heading { experiment: "commerce", targets, ..heading };
    let row: ResultRow = measure_row(heading, bench.scale.repetition_count, contenders)?;
    drop((asking, waiting));
    Box::new(theirs).close()?;
    bench.push(row)
}

/// Waits until a live query has a document; returns the time.
fn wait_for_document(watch: &mut RemoteWatch, id: &str) -> Result<Instant> {
    loop {
        let delta = watch.next_delta()?.ok_or("the watch is over")?;
        let now = Instant::now();
        for event in delta.events() {
            if matches!(event?, DeltaEvent::Added(document) if document.id().as_str() == id) {
                return Ok(now);
            }
        }
    }
}
