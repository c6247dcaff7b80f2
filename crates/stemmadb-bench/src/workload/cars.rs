//! Cars of DODB's experiment: a unique name, one of 25 colors, and keywords, one of which every 50th car has.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::corpus::Documents;

/// Number of colors.
const COLOR_COUNT: u64 = 25;
/// Every n-th car has the queried keyword.
const RARITY: u64 = 50;
/// Number of other keywords.
const KEYWORD_COUNT: u64 = 20;

/// The queried color.
pub(crate) const COLOR: &str = "color-07";
/// The queried keyword.
pub(crate) const KEYWORD: &str = "rare";

/// The workload of cars.
#[derive(Clone, Copy)]
pub(crate) struct Cars;

/// A car.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Car {
    pub(crate) name: String,
    pub(crate) color: String,
    pub(crate) keywords: Vec<String>,
}

impl Car {
    /// Generates car `number`.
    pub(crate) fn new(number: u64) -> Self {
        // Colors and keywords cycle through all combinations.
        let (color, word) = (number % COLOR_COUNT, number / COLOR_COUNT % KEYWORD_COUNT);
        let mut keywords = vec![format!("word-{word:02}"), format!("word-{:02}", (word + 7) % KEYWORD_COUNT)];
        if number.is_multiple_of(RARITY) {
            keywords.push(KEYWORD.to_owned());
        }
        Car { name: name(number), color: format!("color-{color:02}"), keywords }
    }
}

/// Returns the name of car `number`.
pub(crate) fn name(number: u64) -> String {
    format!("car-{number:06}")
}

impl Documents for Cars {
    fn write_id(&self, number: u64, id: &mut String) {
        write!(id, "{number:010}").expect("a string takes everything");
    }

    fn write_json(&self, number: u64, json: &mut String) {
        json.push_str(&serde_json::to_string(&Car::new(number)).expect("a car is JSON"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn color_and_keyword_have_the_documented_selectivity() {
        let cars: Vec<Car> = (0..10_000).map(Car::new).collect();
        assert_eq!(cars.iter().filter(|car| car.color == COLOR).count(), 400);
        assert_eq!(cars.iter().filter(|car| car.keywords.iter().any(|word| word == KEYWORD)).count(), 200);
        let names: std::collections::HashSet<&str> = cars.iter().map(|car| car.name.as_str()).collect();
        assert_eq!(names.len(), 10_000);
    }
}
