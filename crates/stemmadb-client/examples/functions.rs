//! A server with a function of its own, and a client that calls it: the example of the guide "Serving databases".
//!
//! Run it with `cargo run -p stemmadb-client --example functions`.

use serde::{Deserialize, Serialize};
use serde_json::json;
use stemmadb::{Error, Patch, Result};
use stemmadb_client::{Client, Credentials};
use stemmadb_server::{Administrator, Config, Server, ServerBuilder, Wire};

#[derive(Serialize, Deserialize)]
struct Order {
    book: String,
    count: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    total: u64,
    left: u64,
}

/// A server that sells books.
pub(crate) fn builder(config: Config) -> ServerBuilder {
    // [function]
    Server::builder(config).function("sell", |context, order: Order| {
        context.optimistic(|tx| {
            let book = tx.get(&order.book)?;
            let book = book.ok_or_else(|| Error::not_found(format!("there is no book `{}`", order.book)))?;
            let number = |field| Ok::<_, Error>(book.get(field)?.and_then(|value| value.as_u64()).unwrap_or(0));
            let (price, stock, count) = (number("price")?, number("stock")?, u64::from(order.count));
            let left = stock.checked_sub(count).ok_or_else(|| Error::conflict(format!("only {stock} are left")))?;
            tx.update(&order.book, &Patch::new().set("stock", left))?;
            Ok(Receipt { total: price * count, left })
        })
    })
    // [/function]
}

/// Sells two books.
pub(crate) fn sell(client: &Client) -> Result<()> {
    let db = client.create_database("shop")?;
    db.insert("solaris", &json!({"price": 12, "stock": 3}))?;
    // [call]
    let receipt: Receipt = db.call("sell", &Order { book: "solaris".into(), count: 2 })?;
    assert_eq!(receipt, Receipt { total: 24, left: 1 });
    // [/call]
    Ok(())
}

#[tokio::main]
#[allow(dead_code, reason = "a test includes this file")]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let config = Config {
        address: ([127, 0, 0, 1], 0).into(),
        administrator: Some(Administrator { name: "admin".into(), password: "secret".into() }),
        wire: Wire { address: Some(([127, 0, 0, 1], 0).into()), ..Wire::default() },
        ..Config::new(directory.path())
    };
    let server = builder(config).start().await?;
    let url = format!("stemma://{}", server.wire_address().ok_or("the server has no wire address")?);
    let credentials = Credentials::Password { user: "admin".into(), password: "secret".into() };
    tokio::task::spawn_blocking(move || {
        let options = stemmadb_client::ClientOptions::new().credentials(credentials);
        sell(&Client::connect_with(&url, options)?)
    })
    .await??;
    server.stop().await;
    Ok(())
}
