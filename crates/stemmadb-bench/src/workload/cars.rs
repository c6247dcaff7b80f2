//! The cars of DODB's experiment: a unique name, one of 25 colours, and keywords, one of which is on every fiftieth car.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::corpus::Documents;

/// How many colours there are.
const COLOR_COUNT: u64 = 25;
/// Of so many cars one has the keyword that is asked for.
const RARITY: u64 = 50;
/// Other keywords.
const KEYWORD_COUNT: u64 = 20;

/// The colour that is asked for.
pub(crate) const COLOR: &str = "color-07";
/// The keyword that is asked for.
pub(crate) const KEYWORD: &str = "rare";

/// All cars.
#[derive(Clone, Copy)]
pub(crate) struct Cars;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Car {
    pub(crate) name: String,
    pub(crate) color: String,
    pub(crate) keywords: Vec<String>,
}

impl Car {
    /// Car `number`.
    pub(crate) fn new(number: u64) -> Self {
        // Colours and keywords go through all combinations.
        let (color, word) = (number % COLOR_COUNT, number / COLOR_COUNT % KEYWORD_COUNT);
        let mut keywords = vec![format!("word-{word:02}"), format!("word-{:02}", (word + 7) % KEYWORD_COUNT)];
        if number.is_multiple_of(RARITY) {
            keywords.push(KEYWORD.to_owned());
        }
        Car { name: name(number), color: format!("color-{color:02}"), keywords }
    }
}

/// The name of car `number`.
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
    fn a_25th_of_the_cars_has_the_colour_and_a_50th_the_keyword() {
        let cars: Vec<Car> = (0..10_000).map(Car::new).collect();
        assert_eq!(cars.iter().filter(|car| car.color == COLOR).count(), 400);
        assert_eq!(cars.iter().filter(|car| car.keywords.iter().any(|word| word == KEYWORD)).count(), 200);
        let names: std::collections::HashSet<&str> = cars.iter().map(|car| car.name.as_str()).collect();
        assert_eq!(names.len(), 10_000);
    }
}
