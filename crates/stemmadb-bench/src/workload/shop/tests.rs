//! Tests that the workload resembles the original benchmark: row counts, document sizes, and operations.

use serde::Serialize;

use super::*;

const SEED: u64 = 0;

fn mean_bytes<T: Serialize>(documents: &[T]) -> f64 {
    let bytes: usize = documents.iter().map(|document| serde_json::to_string(document).unwrap().len()).sum();
    bytes as f64 / documents.len() as f64
}

fn assert_near(what: &str, found: f64, published: f64, share: f64) {
    assert!((found / published - 1.0).abs() <= share, "{what}: {found}, published {published}");
}

/// Allowed relative deviation of two random counts: three standard deviations, plus a margin for correlated events.
fn by_chance(count: f64) -> f64 {
    0.05 + 3.0 / count.sqrt()
}

/// Published figures by size: product categories, ordered products, reviews with text; mean bytes of customers,
/// products, orders, categories and reviews.
const PUBLISHED: [([f64; 3], [f64; 5]); 3] = [
    ([196.0, 1_105.0, 16.0], [206.0, 65.0, 59.0, 21.0, 202.0]),
    ([11_971.0, 14_254.0, 121.0], [207.0, 94.0, 71.0, 20.0, 197.0]),
    ([123_238.0, 47_319.0, 260.0], [207.0, 132.0, 81.0, 20.0, 209.0]),
];

#[test]
fn stock_matches_published_counts() {
    for (size, (rows, bytes)) in SIZES.iter().zip(PUBLISHED) {
        let (stock, _) = size.generate(SEED, &BALANCED, 0);
        let counts = [
            stock.customers.len(),
            stock.products.len(),
            stock.categories.len(),
            stock.orders.len(),
            stock.reviews.len(),
        ];
        assert_eq!(counts.iter().sum::<usize>() as u64, size.document_count());
        let category_count: usize = stock.products.iter().map(|product| product.category_ids.len()).sum();
        let product_count: usize = stock.orders.iter().map(|order| order.product_ids.len()).sum();
        let text_count = stock.reviews.iter().filter(|review| review.review.is_some()).count();
        let found = [category_count, product_count, text_count].map(|count| count as f64);
        println!("{}: rows {found:?}", size.name);
        for (what, (found, published)) in ["categories", "products", "texts"].iter().zip(found.into_iter().zip(rows)) {
            assert_near(&format!("{} {what}", size.name), found, published, by_chance(published));
        }
        let found = [
            mean_bytes(&stock.customers),
            mean_bytes(&stock.products),
            mean_bytes(&stock.orders),
            mean_bytes(&stock.categories),
            mean_bytes(&stock.reviews),
        ];
        println!("{}: bytes {found:?}", size.name);
        for (what, (found, published)) in
            ["customer", "product", "order", "category", "review"].iter().zip(found.into_iter().zip(bytes))
        {
            let share = if size.name == "small" { 0.35 } else { 0.12 };
            assert_near(&format!("{} {what}", size.name), found, published, share);
        }
    }
}

#[test]
fn shopper_plans_match_published_counts() {
    // Operations of 1,000 shoppers in the large shop: look up, find, create cart, add, checkout, rate.
    let published = [
        (BALANCED, [2_731.0, 2_766.0, 715.0, 1_350.0, 165.0, 81.0]),
        (READ_HEAVY, [2_721.0, 2_748.0, 389.0, 538.0, 34.0, 3.0]),
        (WRITE_HEAVY, [2_676.0, 2_815.0, 987.0, 4_951.0, 876.0, 3_918.0]),
    ];
    for (kind, published) in published {
        let (_, plans) = SIZES[2].generate(SEED, &kind, 1_000);
        let count_of = |operation| plans.iter().flatten().filter(|step| step.operation() == operation).count() as f64;
        let found = OPERATIONS.map(count_of);
        println!("{}: {found:?}", kind.name);
        for ((operation, found), published) in OPERATIONS.into_iter().zip(found).zip(published) {
            assert_near(&format!("{} {}", kind.name, operation.name()), found, published, by_chance(published));
        }
    }
}

#[test]
fn equal_seeds_give_equal_shops() {
    let text = |seed| {
        let (stock, plans) = SIZES[0].generate(seed, &BALANCED, 100);
        format!("{:?} {:?} {:?} {plans:?}", stock.products, stock.orders, stock.reviews)
    };
    assert_eq!(text(SEED), text(SEED));
    assert_ne!(text(SEED), text(SEED + 1));
}

#[test]
fn reviews_are_unique_and_of_ordered_products() {
    let (stock, _) = SIZES[1].generate(SEED, &BALANCED, 0);
    let mut seen = std::collections::HashSet::new();
    for review in &stock.reviews {
        assert!(seen.insert((review.customer_id, review.product_id)));
        let bought = |order: &Order| {
            order.customer_id == Some(review.customer_id) && order.product_ids.contains(&review.product_id)
        };
        assert!(stock.orders.iter().any(bought) && (1..=5).contains(&review.rating));
    }
}

#[test]
fn model_keeps_one_review_per_customer_and_moves_carts_into_orders() {
    let (stock, _) = SIZES[0].generate(SEED, &BALANCED, 0);
    let initial = ShopModel::new(&stock);
    let mut model = initial.clone();
    let rate = |rating| Step::RateProduct { customer_id: 7, product_id: 3, rating };
    let mut plan = vec![Step::CreateCart, Step::AddProduct(3), Step::AddProduct(1), Step::Checkout { customer_id: 7 }];
    plan.extend([rate(2), rate(5), Step::LookupProduct(3)]);
    let results = model.serve(&plan);
    assert_eq!(results[3], StepResult::Ordered(vec![1, 3]));
    let before = initial.product(3).rating;
    let seen = model.product(3);
    assert_eq!(results[6], StepResult::Product(Some(seen.clone())));
    assert_eq!(seen.rating, Rating { total: before.total + 5, count: before.count + 1 });
    let left = model.serve(&[Step::CreateCart, Step::AddProduct(9)]);
    assert_eq!(left, [StepResult::Done, StepResult::Done]);
    let state = model.state();
    assert_eq!(state.orders.len(), stock.orders.len() + 1);
    assert_eq!(state.carts, [Order { customer_id: None, product_ids: vec![9] }]);
    // Another shopper's rating may be the last one; this shopper's first rating may not.
    model.serve(&[rate(1)]);
    for (rating, is_possible) in [(5, true), (1, true), (2, false)] {
        let mut state = model.state();
        state.ratings.insert((3, 7), rating);
        assert_eq!(model.check_final_state(&state).is_ok(), is_possible);
    }
    assert!(model.check_concurrent_result(&initial, &results[6], &results[6]).is_ok());
    let wrong = StepResult::Product(Some(ProductWithRating { rating: Rating { total: 500, count: 100 }, ..seen }));
    assert!(model.check_concurrent_result(&initial, &results[6], &wrong).is_err());
}
