//! Somebody waits to be told of new carts: over a WebSocket by Stemma, by NOTIFY over a connection of its own by PostgreSQL.
//!
//! Requests don't travel by WebSocket here, only what is watched does; so this is what of the shop can be measured over one.

use std::time::Instant;

use postgres::fallible_iterator::FallibleIterator;

use super::Bench;
use crate::Result;
use crate::engine::shop::{Form, PostgresServer, PostgresShop, Reach, Shop as _, StemmaHttpShop};
use crate::harness::{Contender, Heading, Row, Samples, Unit, hold};
use crate::served::Connection;
use crate::workload::shop::Stock;

const NAME: &str = "network notice: a new cart, from its request until another client hears of it";
/// Carts of a turn.
const CART_COUNT: usize = 50;

pub(super) fn run(bench: &mut Bench, server: &PostgresServer, stock: &Stock) -> Result<()> {
    if !bench.wants(NAME) {
        return Ok(());
    }
    let ours = StemmaHttpShop::open(&bench.place.fresh("shop-notices")?, stock)?;
    let site = ours.site();
    // {"_id":{"$beginsWith":"cart:"}}
    let watch = "/shop/_watch?selector=%7B%22_id%22%3A%7B%22%24beginsWith%22%3A%22cart%3A%22%7D%7D&since=now";
    let mut watching = Connection::open(site.address)?;
    watching.upgrade(&site, watch)?;
    let mut writing = Connection::open(site.address)?;
    let mut number = 0;
    let mut stemma = |samples: &mut Samples| -> Result<()> {
        for _ in 0..CART_COUNT {
            number += 1;
            let id = format!("cart:noticed-{number}");
            let request = site.request("PUT", &format!("/shop/{id}"), Some(r#"{"customer_id":null,"product_ids":[]}"#));
            let start = Instant::now();
            let (heard, answer) = std::thread::scope(|scope| -> Result<_> {
                let hearing = scope.spawn(|| watching.hear_of(&id));
                let answer = writing.ask(&request)?;
                Ok((hearing.join().map_err(|_| "a client failed")??, answer))
            })?;
            if answer.status != 201 {
                return Err(format!("PUT {id}: {}", answer.status).into());
            }
            samples.push((heard - start).as_nanos() as f64);
        }
        Ok(())
    };
    let theirs = PostgresShop::open(server, Form::Tuned, Reach::Tcp, stock)?;
    let (mut waiting, mut asking) = (theirs.connect()?, theirs.connect()?);
    waiting.batch_execute("LISTEN carts")?;
    let insert = asking.prepare(
        "WITH made AS (INSERT INTO carts (customer_id) VALUES (NULL) RETURNING id) \
         SELECT id, pg_notify('carts', id::text) FROM made",
    )?;
    let mut postgres = |samples: &mut Samples| -> Result<()> {
        for _ in 0..CART_COUNT {
            let start = Instant::now();
            let (heard, made) = std::thread::scope(|scope| -> Result<_> {
                let hearing = scope.spawn(|| {
                    let told = waiting.notifications().blocking_iter().next();
                    told.map(|told| (told, Instant::now()))
                });
                let made: i32 = asking.query_one(&insert, &[])?.get(0);
                Ok((hearing.join().map_err(|_| "a client failed")??, made))
            })?;
            let (told, heard) = heard;
            if told.map(|told| told.payload().to_owned()) != Some(made.to_string()) {
                return Err(format!("it did not hear of cart {made}").into());
            }
            samples.push((heard - start).as_nanos() as f64);
        }
        Ok(())
    };
    let contenders = vec![
        Contender::new("stemma", |_, samples| stemma(samples)),
        Contender::new("postgresql-tcp", |_, samples| postgres(samples)),
    ];
    let heading = bench.heading(NAME, stock.products.len() as u64, true, Unit::Microseconds);
    let targets = vec![("postgresql-tcp", super::NETWORK_TARGET)];
    let heading = Heading { experiment: "commerce", targets, ..heading };
    let row: Row = hold(heading, bench.scale.repetition_count, contenders)?;
    drop((asking, waiting));
    Box::new(theirs).close()?;
    bench.push(row)
}
