//! SQL of the shop in PostgreSQL, tuned and as in the original benchmark.

/// The statements that differ between the variants.
pub(super) struct Sql {
    /// The tables that differ between the variants.
    pub(super) schema: &'static str,
    pub(super) find_product: &'static str,
    pub(super) look_up_product: &'static str,
}

/// Tables common to both variants.
pub(super) const SCHEMA: &str = "
    CREATE TABLE customers(id serial PRIMARY KEY, name text NOT NULL, email text NOT NULL, address text NOT NULL,
        city text NOT NULL, region text NOT NULL, country text NOT NULL, postal_code text NOT NULL,
        phone text NOT NULL);
    CREATE TABLE categories(id serial PRIMARY KEY, name text NOT NULL);
    CREATE TABLE products(id serial PRIMARY KEY, name text NOT NULL);
    CREATE TABLE orders(id serial PRIMARY KEY, customer_id int NOT NULL);
    CREATE TABLE carts(id serial PRIMARY KEY, customer_id int);
    CREATE TABLE order_products(order_id int NOT NULL, product_id int NOT NULL);
    CREATE TABLE cart_products(cart_id int NOT NULL, product_id int NOT NULL);";

/// Tuned: an index on every lookup; each step is one statement, hence one round trip and one transaction.
pub(super) const TUNED: Sql = Sql {
    schema: "
        CREATE UNIQUE INDEX products_by_name ON products(name);
        CREATE TABLE product_categories(product_id int NOT NULL, category_id int NOT NULL,
            PRIMARY KEY(product_id, category_id));
        CREATE TABLE product_reviews(product_id int NOT NULL, customer_id int NOT NULL, rating int NOT NULL,
            review text, PRIMARY KEY(product_id, customer_id)) WITH (fillfactor = 80);
        CREATE INDEX order_products_by_order ON order_products(order_id);
        CREATE INDEX cart_products_by_cart ON cart_products(cart_id);",
    find_product: "
        SELECT p.id, p.name, ARRAY(SELECT category_id FROM product_categories WHERE product_id = p.id), r.total, r.count
        FROM products p, LATERAL (SELECT coalesce(sum(rating), 0)::int8 AS total, count(*) AS count
            FROM product_reviews WHERE product_id = p.id) r
        WHERE p.name = $1",
    look_up_product: "
        SELECT p.id, p.name, ARRAY(SELECT category_id FROM product_categories WHERE product_id = p.id), r.total, r.count
        FROM products p, LATERAL (SELECT coalesce(sum(rating), 0)::int8 AS total, count(*) AS count
            FROM product_reviews WHERE product_id = p.id) r
        WHERE p.id = $1",
};

/// The tuned checkout, in one statement.
pub(super) const CHECKOUT: &str = "
    WITH contents AS (DELETE FROM cart_products WHERE cart_id = $1 RETURNING product_id),
        cart AS (DELETE FROM carts WHERE id = $1),
        placed AS (INSERT INTO orders(customer_id) VALUES ($2) RETURNING id)
    INSERT INTO order_products SELECT placed.id, contents.product_id FROM placed, contents RETURNING product_id";

pub(super) const CREATE_CART: &str = "INSERT INTO carts(customer_id) VALUES (NULL) RETURNING id";
pub(super) const ADD_PRODUCT: &str = "INSERT INTO cart_products VALUES ($1, $2)";
pub(super) const RATE: &str =
    "INSERT INTO product_reviews(product_id, customer_id, rating, review) VALUES ($1, $2, $3, NULL)
    ON CONFLICT (product_id, customer_id) DO UPDATE SET rating = excluded.rating, review = excluded.review";

/// As in the original: ratings in a materialized view without an index, refreshed after each review; no index on cart
/// contents; one row per category. Corrected only where the original was broken: its column names, and checkouts are
/// committed.
pub(super) const LITERAL: Sql = Sql {
    schema: "
        CREATE INDEX products_by_name ON products(name);
        CREATE TABLE product_categories(product_id int NOT NULL, category_id int NOT NULL);
        CREATE INDEX product_categories_by_product ON product_categories(product_id);
        CREATE INDEX product_categories_by_category ON product_categories(category_id);
        CREATE TABLE product_reviews(product_id int NOT NULL, customer_id int NOT NULL, rating int NOT NULL,
            review text);
        CREATE INDEX product_reviews_by_product ON product_reviews(product_id);
        CREATE UNIQUE INDEX product_reviews_by_customer ON product_reviews(customer_id, product_id);
        CREATE MATERIALIZED VIEW product_ratings AS
            SELECT product_id, sum(rating)::int AS total_rating, count(rating)::int AS ratings
            FROM product_reviews GROUP BY product_id;",
    find_product: "
        SELECT id, name, category_id, total_rating, ratings FROM products
        LEFT JOIN product_categories ON product_categories.product_id = id
        LEFT JOIN product_ratings ON product_ratings.product_id = id
        WHERE name = $1 GROUP BY id, name, category_id, total_rating, ratings",
    look_up_product: "
        SELECT id, name, category_id, total_rating, ratings FROM products
        LEFT JOIN product_categories ON product_categories.product_id = id
        LEFT JOIN product_ratings ON product_ratings.product_id = id
        WHERE id = $1 GROUP BY id, name, category_id, total_rating, ratings",
};

pub(super) const REFRESH: &str = "REFRESH MATERIALIZED VIEW product_ratings";
pub(super) const INSERT_ORDER: &str = "INSERT INTO orders(customer_id) VALUES ($1) RETURNING id";
pub(super) const MOVE_CONTENTS: &str = "
    WITH contents AS (DELETE FROM cart_products WHERE cart_id = $1 RETURNING product_id)
    INSERT INTO order_products SELECT $2, product_id FROM contents RETURNING product_id";
pub(super) const DELETE_CART: &str = "DELETE FROM carts WHERE id = $1";
