//! The shop in PostgreSQL, in two variants: tuned, and as in the original benchmark.

use std::io::Write as _;

use postgres::{Client, Row, Statement};

use super::postgres_sql::{
    ADD_PRODUCT, CHECKOUT, CREATE_CART, DELETE_CART, INSERT_ORDER, LITERAL, MOVE_CONTENTS, RATE, REFRESH, SCHEMA, Sql,
    TUNED,
};
use super::{Agent, CartId, PostgresServer, Shop, Transport, ascending};
use crate::Result;
use crate::workload::shop::{Order, ProductWithRating, Rating, ShopState, Stock};

/// Describes the client configuration, for the report.
pub(super) const SETTINGS: &str =
    "prepared statements, a connection for each agent, VACUUM ANALYZE and CHECKPOINT after the load";

/// Which schema and statements are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostgresVariant {
    /// An index on every lookup, and as few round trips as possible.
    Tuned,
    /// As in the original benchmark.
    Literal,
}

/// A shop in its own database. At most one exists per variant at a time.
pub(crate) struct PostgresShop<'a> {
    server: &'a PostgresServer,
    variant: PostgresVariant,
    transport: Transport,
}

impl PostgresVariant {
    fn database(self) -> &'static str {
        match self {
            PostgresVariant::Tuned => "shop",
            PostgresVariant::Literal => "literal_shop",
        }
    }

    fn sql(self) -> &'static Sql {
        match self {
            PostgresVariant::Tuned => &TUNED,
            PostgresVariant::Literal => &LITERAL,
        }
    }
}

impl<'a> PostgresShop<'a> {
    /// Creates a shop and loads the stock with COPY in one transaction.
    pub(crate) fn open(
        server: &'a PostgresServer,
        variant: PostgresVariant,
        transport: Transport,
        stock: &Stock,
    ) -> Result<Self> {
        server.create_database(variant.database())?;
        let shop = PostgresShop { server, variant, transport };
        let mut client = shop.connect()?;
        let mut transaction = client.transaction()?;
        transaction.batch_execute(SCHEMA)?;
        transaction.batch_execute(variant.sql().schema)?;
        for (table, rows) in tables(stock) {
            let mut copy = transaction.copy_in(&format!("COPY {table} FROM STDIN"))?;
            copy.write_all(rows.as_bytes())?;
            copy.finish()?;
        }
        for table in ["customers", "categories", "products", "orders"] {
            let set = format!("SELECT setval('{table}_id_seq', (SELECT max(id) + 1 FROM {table}))");
            transaction.batch_execute(&set)?;
        }
        if variant == PostgresVariant::Literal {
            transaction.batch_execute(REFRESH)?;
        }
        transaction.commit()?;
        Ok(shop)
    }

    /// Runs the maintenance that is usual after a bulk load.
    pub(crate) fn run_maintenance(&self) -> Result<()> {
        // Separate calls, because several statements in one call form one transaction.
        let mut client = self.connect()?;
        client.batch_execute("VACUUM ANALYZE")?;
        Ok(client.batch_execute("CHECKPOINT")?)
    }

    /// Opens a connection to the shop's database.
    pub(crate) fn connect(&self) -> Result<Client> {
        self.server.connect(self.variant.database(), self.transport)
    }
}

/// Returns each table's rows in COPY text format.
fn tables(stock: &Stock) -> Vec<(&'static str, String)> {
    let mut tables = Vec::new();
    let mut add = |table: &'static str, rows: Vec<String>| tables.push((table, rows.concat()));
    let numbered = |names: Vec<&str>| names.iter().enumerate().map(|(id, name)| format!("{id}\t{name}\n")).collect();
    add("categories", numbered(stock.categories.iter().map(|category| category.name.as_str()).collect()));
    add("products", numbered(stock.products.iter().map(|product| product.name.as_str()).collect()));
    let of_each = |lists: Vec<&[u32]>| {
        let pairs = lists.iter().enumerate().flat_map(|(id, list)| list.iter().map(move |other| (id, other)));
        pairs.map(|(id, other)| format!("{id}\t{other}\n")).collect()
    };
    add("product_categories", of_each(stock.products.iter().map(|product| product.category_ids.as_slice()).collect()));
    let customers = stock.customers.iter().enumerate().map(|(id, one)| {
        let address = [&one.address, &one.city, &one.region, &one.country, &one.postal_code].map(String::as_str);
        format!("{id}\t{}\t{}\t{}\t{}\n", one.name, one.email, address.join("\t"), one.phone)
    });
    add("customers", customers.collect());
    let orders = stock.orders.iter().enumerate();
    add("orders", orders.map(|(id, order)| format!("{id}\t{}\n", order.customer_id.unwrap_or(0))).collect());
    add("order_products", of_each(stock.orders.iter().map(|order| order.product_ids.as_slice()).collect()));
    let reviews = stock.reviews.iter().map(|one| {
        let review = one.review.as_ref().map_or("\\N".to_owned(), |text| text.replace('\n', "\\n"));
        format!("{}\t{}\t{}\t{review}\n", one.product_id, one.customer_id, one.rating)
    });
    add("product_reviews", reviews.collect());
    tables
}

impl Shop for PostgresShop<'_> {
    fn agent(&self) -> Result<Box<dyn Agent + Send + '_>> {
        let mut client = self.connect()?;
        let sql = self.variant.sql();
        let (checkout, move_contents) = match self.variant {
            PostgresVariant::Tuned => (CHECKOUT, None),
            PostgresVariant::Literal => (INSERT_ORDER, Some(client.prepare(MOVE_CONTENTS)?)),
        };
        Ok(Box::new(PostgresAgent {
            find: client.prepare(sql.find_product)?,
            look_up: client.prepare(sql.look_up_product)?,
            create_cart: client.prepare(CREATE_CART)?,
            add: client.prepare(ADD_PRODUCT)?,
            checkout: client.prepare(checkout)?,
            move_contents,
            delete_cart: client.prepare(DELETE_CART)?,
            rate: client.prepare(RATE)?,
            refresh: client.prepare(REFRESH)?,
            client,
            variant: self.variant,
        }))
    }

    fn state(&self) -> Result<ShopState> {
        let mut client = self.connect()?;
        let mut baskets = |table: &str, contents: &str, key: &str| -> Result<Vec<Order>> {
            let sql = format!(
                "SELECT customer_id, ARRAY(SELECT product_id FROM {contents} WHERE {key} = {table}.id) FROM {table}"
            );
            let rows = client.query(&sql, &[])?;
            rows.iter().map(|row| Ok(Order { customer_id: optional(row, 0)?, product_ids: numbers(row, 1)? })).collect()
        };
        let orders = baskets("orders", "order_products", "order_id")?;
        let carts = baskets("carts", "cart_products", "cart_id")?;
        let mut state = ShopState { orders, carts, ..ShopState::default() };
        for row in client.query("SELECT product_id, customer_id, rating FROM product_reviews", &[])? {
            state.ratings.insert((number(&row, 0)?, number(&row, 1)?), u8::try_from(row.get::<_, i32>(2))?);
        }
        Ok(state.normalized())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.server.drop_database(self.variant.database())
    }
}

fn number(row: &Row, column: usize) -> Result<u32> {
    Ok(u32::try_from(row.get::<_, i32>(column))?)
}

fn optional(row: &Row, column: usize) -> Result<Option<u32>> {
    Ok(row.get::<_, Option<i32>>(column).map(u32::try_from).transpose()?)
}

fn numbers(row: &Row, column: usize) -> Result<Vec<u32>> {
    let numbers: Vec<i32> = row.get(column);
    Ok(numbers.into_iter().map(u32::try_from).collect::<Result<_, _>>()?)
}

struct PostgresAgent {
    client: Client,
    variant: PostgresVariant,
    find: Statement,
    look_up: Statement,
    create_cart: Statement,
    add: Statement,
    checkout: Statement,
    move_contents: Option<Statement>,
    delete_cart: Statement,
    rate: Statement,
    refresh: Statement,
}

impl PostgresAgent {
    fn product_with_rating(&self, rows: &[Row]) -> Result<Option<ProductWithRating>> {
        let Some(row) = rows.first() else { return Ok(None) };
        let (category_ids, rating) = match self.variant {
            PostgresVariant::Tuned => {
                let (total, count): (i64, i64) = (row.get(3), row.get(4));
                (numbers(row, 2)?, Rating { total: u32::try_from(total)?, count: u32::try_from(count)? })
            }
            PostgresVariant::Literal => {
                let categories: Vec<Option<u32>> = rows.iter().map(|row| optional(row, 2)).collect::<Result<_>>()?;
                let (total, count) = (optional(row, 3)?.unwrap_or(0), optional(row, 4)?.unwrap_or(0));
                let rating = Rating { total, count };
                (categories.into_iter().flatten().collect(), rating)
            }
        };
        let category_ids = ascending(category_ids);
        Ok(Some(ProductWithRating { id: number(row, 0)?, name: row.get(1), category_ids, rating }))
    }

    /// Checkout as in the original: three statements between BEGIN and COMMIT.
    fn literal_checkout(&mut self, cart: i32, customer_id: i32, move_contents: &Statement) -> Result<Vec<Row>> {
        let mut transaction = self.client.transaction()?;
        let order: i32 = transaction.query_one(&self.checkout, &[&customer_id])?.get(0);
        let rows = transaction.query(move_contents, &[&cart, &order])?;
        transaction.execute(&self.delete_cart, &[&cart])?;
        transaction.commit()?;
        Ok(rows)
    }
}

fn key(number: u32) -> Result<i32> {
    Ok(i32::try_from(number)?)
}

fn cart_key(cart: CartId) -> Result<i32> {
    Ok(i32::try_from(cart.row()?)?)
}

impl Agent for PostgresAgent {
    fn find_product(&mut self, name: &str) -> Result<Option<ProductWithRating>> {
        let rows = self.client.query(&self.find, &[&name])?;
        self.product_with_rating(&rows)
    }

    fn look_up_product(&mut self, id: u32) -> Result<Option<ProductWithRating>> {
        let rows = self.client.query(&self.look_up, &[&key(id)?])?;
        self.product_with_rating(&rows)
    }

    fn create_cart(&mut self) -> Result<CartId> {
        let row = match self.variant {
            PostgresVariant::Tuned => self.client.query_one(&self.create_cart, &[])?,
            PostgresVariant::Literal => {
                let mut transaction = self.client.transaction()?;
                let row = transaction.query_one(&self.create_cart, &[])?;
                transaction.commit()?;
                row
            }
        };
        CartId::from_row(i64::from(row.get::<_, i32>(0)))
    }

    fn add_product(&mut self, cart: CartId, product_id: u32) -> Result<()> {
        let (cart, product_id) = (cart_key(cart)?, key(product_id)?);
        match self.variant {
            PostgresVariant::Tuned => self.client.execute(&self.add, &[&cart, &product_id])?,
            PostgresVariant::Literal => {
                let mut transaction = self.client.transaction()?;
                let count = transaction.execute(&self.add, &[&cart, &product_id])?;
                transaction.commit()?;
                count
            }
        };
        Ok(())
    }

    fn checkout(&mut self, cart: CartId, customer_id: u32) -> Result<Vec<u32>> {
        let (cart, customer_id) = (cart_key(cart)?, key(customer_id)?);
        let rows = match self.move_contents.clone() {
            None => self.client.query(&self.checkout, &[&cart, &customer_id])?,
            Some(move_contents) => self.literal_checkout(cart, customer_id, &move_contents)?,
        };
        Ok(ascending(rows.iter().map(|row| number(row, 0)).collect::<Result<_>>()?))
    }

    fn rate_product(&mut self, customer_id: u32, product_id: u32, rating: u8) -> Result<()> {
        let (product_id, customer_id, rating) = (key(product_id)?, key(customer_id)?, i32::from(rating));
        match self.variant {
            PostgresVariant::Tuned => {
                self.client.execute(&self.rate, &[&product_id, &customer_id, &rating])?;
            }
            PostgresVariant::Literal => {
                let mut transaction = self.client.transaction()?;
                transaction.execute(&self.rate, &[&product_id, &customer_id, &rating])?;
                transaction.commit()?;
                self.client.execute(&self.refresh, &[])?;
            }
        }
        Ok(())
    }

    fn cart(&mut self, cart: CartId) -> Result<Option<Vec<u32>>> {
        let sql = "SELECT ARRAY(SELECT product_id FROM cart_products WHERE cart_id = $1) FROM carts WHERE id = $1";
        let row = self.client.query_opt(sql, &[&cart_key(cart)?])?;
        Ok(row.map(|row| numbers(&row, 0)).transpose()?.map(ascending))
    }
}
