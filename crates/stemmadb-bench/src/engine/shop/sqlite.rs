//! The shop in SQLite: an index on every lookup, prepared statements, and one connection per agent.
//!
//! SQLite allows one writer, and its busy handler sleeps for milliseconds. Agents of one process avoid this by holding
//! a lock while they write.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior};

use super::super::sqlite::connect;
use super::{Agent, CartId, Shop, ascending};
use crate::Result;
use crate::workload::shop::{Order, ProductWithRating, Rating, ShopState, Stock};

/// Describes the configuration, for the report.
pub(super) const SETTINGS: &str = "SQLite: WAL, synchronous FULL, 1 GiB of page cache, 2 GiB mapped, prepared \
    statements, a connection per agent, a lock around writes instead of its busy handler, ANALYZE after the load";

const SCHEMA: &str = "
    CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL, address TEXT NOT NULL,
        city TEXT NOT NULL, region TEXT NOT NULL, country TEXT NOT NULL, postal_code TEXT NOT NULL,
        phone TEXT NOT NULL);
    CREATE TABLE categories(id INTEGER PRIMARY KEY, name TEXT NOT NULL);
    CREATE TABLE products(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE product_categories(product_id INTEGER NOT NULL, category_id INTEGER NOT NULL,
        PRIMARY KEY(product_id, category_id)) WITHOUT ROWID;
    CREATE TABLE reviews(product_id INTEGER NOT NULL, customer_id INTEGER NOT NULL, rating INTEGER NOT NULL,
        review TEXT, PRIMARY KEY(product_id, customer_id)) WITHOUT ROWID;
    CREATE TABLE orders(id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL);
    CREATE TABLE order_products(order_id INTEGER NOT NULL, product_id INTEGER NOT NULL);
    CREATE INDEX order_products_by_order ON order_products(order_id);
    CREATE TABLE carts(id INTEGER PRIMARY KEY, customer_id INTEGER);
    CREATE TABLE cart_products(cart_id INTEGER NOT NULL, product_id INTEGER NOT NULL);
    CREATE INDEX cart_products_by_cart ON cart_products(cart_id);";

/// Returns exactly one row; its id is null if no product matches.
const PRODUCT: &str =
    "SELECT p.id, p.name, (SELECT group_concat(category_id) FROM product_categories WHERE product_id = p.id),
        ifnull(sum(r.rating), 0), count(r.rating)
    FROM products p LEFT JOIN reviews r ON r.product_id = p.id WHERE";
const RATE: &str = "INSERT INTO reviews(product_id, customer_id, rating, review) VALUES (?1, ?2, ?3, NULL)
    ON CONFLICT(product_id, customer_id) DO UPDATE SET rating = excluded.rating, review = excluded.review";

/// A shop in one database file.
pub(crate) struct SqliteShop {
    path: PathBuf,
    writing: Mutex<()>,
}

impl SqliteShop {
    /// Creates a shop in the file `path` and loads the stock in one transaction.
    pub(crate) fn open(path: &Path, stock: &Stock) -> Result<Self> {
        let mut connection = connect(path, true)?;
        connection.execute_batch(SCHEMA)?;
        let transaction = connection.transaction()?;
        insert_stock(&transaction, stock)?;
        transaction.commit()?;
        Ok(SqliteShop { path: path.to_owned(), writing: Mutex::new(()) })
    }

    /// Runs the maintenance that is usual after a bulk load.
    pub(crate) fn run_maintenance(&self) -> Result<()> {
        connect(&self.path, true)?.execute_batch("ANALYZE; PRAGMA wal_checkpoint(TRUNCATE);")?;
        Ok(())
    }
}

fn insert_stock(connection: &Connection, stock: &Stock) -> Result<()> {
    let mut insert = connection.prepare("INSERT INTO categories VALUES (?1, ?2)")?;
    for (id, category) in stock.categories.iter().enumerate() {
        insert.execute((id as i64, &category.name))?;
    }
    let mut insert = connection.prepare("INSERT INTO products VALUES (?1, ?2)")?;
    let mut insert_category = connection.prepare("INSERT INTO product_categories VALUES (?1, ?2)")?;
    for (id, product) in stock.products.iter().enumerate() {
        insert.execute((id as i64, &product.name))?;
        for category_id in &product.category_ids {
            insert_category.execute((id as i64, category_id))?;
        }
    }
    let mut insert = connection.prepare("INSERT INTO customers VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?;
    for (id, one) in stock.customers.iter().enumerate() {
        let address = (&one.address, &one.city, &one.region, &one.country, &one.postal_code);
        let (address, city, region, country, postal_code) = address;
        insert.execute((id as i64, &one.name, &one.email, address, city, region, country, postal_code, &one.phone))?;
    }
    let mut insert = connection.prepare("INSERT INTO orders VALUES (?1, ?2)")?;
    let mut insert_product = connection.prepare("INSERT INTO order_products VALUES (?1, ?2)")?;
    for (id, order) in stock.orders.iter().enumerate() {
        insert.execute((id as i64, order.customer_id))?;
        for product_id in &order.product_ids {
            insert_product.execute((id as i64, product_id))?;
        }
    }
    let mut insert = connection.prepare("INSERT INTO reviews VALUES (?1, ?2, ?3, ?4)")?;
    for review in &stock.reviews {
        insert.execute((review.product_id, review.customer_id, review.rating, &review.review))?;
    }
    Ok(())
}

impl Shop for SqliteShop {
    fn agent(&self) -> Result<Box<dyn Agent + Send + '_>> {
        let connection = connect(&self.path, true)?;
        // Agents hold a lock while writing, so only a checkpoint can block a writer.
        connection.busy_timeout(Duration::from_secs(30))?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(Box::new(SqliteAgent { connection, writing: &self.writing }))
    }

    fn state(&self) -> Result<ShopState> {
        let connection = connect(&self.path, true)?;
        let mut state = ShopState {
            orders: baskets(&connection, "SELECT id, customer_id FROM orders", "order_products", "order_id")?,
            carts: baskets(&connection, "SELECT id, customer_id FROM carts", "cart_products", "cart_id")?,
            ..ShopState::default()
        };
        let mut statement = connection.prepare("SELECT product_id, customer_id, rating FROM reviews")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            state.ratings.insert((row.get(0)?, row.get(1)?), row.get(2)?);
        }
        Ok(state.normalized())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Reads orders or carts with their contents.
fn baskets(connection: &Connection, sql: &str, table: &str, key: &str) -> Result<Vec<Order>> {
    let mut contents = connection.prepare(&format!("SELECT product_id FROM {table} WHERE {key} = ?1"))?;
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut baskets = Vec::new();
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        let product_ids = contents.query_map([id], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        baskets.push(Order { customer_id: row.get(1)?, product_ids });
    }
    Ok(baskets)
}

struct SqliteAgent<'a> {
    connection: Connection,
    writing: &'a Mutex<()>,
}

impl SqliteAgent<'_> {
    fn write(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn products_in(&self, row: i64) -> rusqlite::Result<Vec<u32>> {
        let mut contents = self.connection.prepare_cached("SELECT product_id FROM cart_products WHERE cart_id = ?1")?;
        contents.query_map([row], |row| row.get(0))?.collect()
    }
}

fn product_with_rating(row: &Row<'_>) -> rusqlite::Result<Option<ProductWithRating>> {
    let Some(id) = row.get(0)? else { return Ok(None) };
    let categories = row.get_ref(2)?.as_str_or_null()?.unwrap_or_default();
    // `group_concat` returns the integer ids as a comma-separated string.
    let category_ids = categories.split(',').filter_map(|number| number.parse().ok()).collect();
    let rating = Rating { total: row.get(3)?, count: row.get(4)? };
    Ok(Some(ProductWithRating { id, name: row.get(1)?, category_ids: ascending(category_ids), rating }))
}

impl Agent for SqliteAgent<'_> {
    fn find_product(&mut self, name: &str) -> Result<Option<ProductWithRating>> {
        let mut select = self.connection.prepare_cached(&format!("{PRODUCT} p.name = ?1"))?;
        Ok(select.query_row([name], product_with_rating)?)
    }

    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductWithRating>> {
        let mut select = self.connection.prepare_cached(&format!("{PRODUCT} p.id = ?1"))?;
        Ok(select.query_row([id], product_with_rating)?)
    }

    fn create_cart(&mut self) -> Result<CartId> {
        let _writing = self.write();
        self.connection.prepare_cached("INSERT INTO carts(customer_id) VALUES (NULL)")?.execute([])?;
        CartId::from_row(self.connection.last_insert_rowid())
    }

    fn add_product(&mut self, cart: CartId, product_id: u32) -> Result<()> {
        let _writing = self.write();
        let mut insert = self.connection.prepare_cached("INSERT INTO cart_products VALUES (?1, ?2)")?;
        insert.execute((cart.row()?, product_id))?;
        Ok(())
    }

    fn checkout(&mut self, cart: CartId, customer_id: u32) -> Result<Vec<u32>> {
        let row = cart.row()?;
        let _writing = self.write();
        let transaction = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
        let products = self.products_in(row)?;
        transaction.prepare_cached("INSERT INTO orders(customer_id) VALUES (?1)")?.execute([customer_id])?;
        let order = transaction.last_insert_rowid();
        let mut insert = transaction.prepare_cached("INSERT INTO order_products VALUES (?1, ?2)")?;
        for product_id in &products {
            insert.execute((order, product_id))?;
        }
        drop(insert);
        transaction.prepare_cached("DELETE FROM cart_products WHERE cart_id = ?1")?.execute([row])?;
        transaction.prepare_cached("DELETE FROM carts WHERE id = ?1")?.execute([row])?;
        transaction.commit()?;
        Ok(ascending(products))
    }

    fn rate_product(&mut self, customer_id: u32, product_id: u32, rating: u8) -> Result<()> {
        let _writing = self.write();
        self.connection.prepare_cached(RATE)?.execute((product_id, customer_id, rating))?;
        Ok(())
    }

    fn cart(&mut self, cart: CartId) -> Result<Option<Vec<u32>>> {
        let row = cart.row()?;
        let mut select = self.connection.prepare_cached("SELECT id FROM carts WHERE id = ?1")?;
        let found: Option<i64> = select.query_row([row], |row| row.get(0)).optional()?;
        drop(select);
        Ok(found.map(|_| self.products_in(row)).transpose()?.map(ascending))
    }
}
