//! Word lists for generated names, addresses and reviews.

use crate::harness::Random;

pub(super) const FIRST_NAMES: [&str; 32] = [
    "Ada", "Alban", "Beatrice", "Bruno", "Clara", "Conrad", "Dora", "Edgar", "Elsa", "Felix", "Greta", "Henry", "Ida",
    "Jasper", "Judith", "Karl", "Lena", "Louis", "Martha", "Nora", "Oscar", "Paula", "Quentin", "Rosa", "Rupert",
    "Selma", "Simon", "Thea", "Ursula", "Victor", "Wanda", "Walter",
];

pub(super) const LAST_NAMES: [&str; 32] = [
    "Abbott",
    "Barlow",
    "Carver",
    "Dalton",
    "Ellwood",
    "Fairfax",
    "Garland",
    "Hawthorn",
    "Ingram",
    "Jarvis",
    "Keller",
    "Langley",
    "Mercer",
    "Norwood",
    "Oakley",
    "Pemberton",
    "Quill",
    "Ramsey",
    "Sinclair",
    "Thornton",
    "Underhill",
    "Vaughan",
    "Whitaker",
    "Yardley",
    "Ashby",
    "Bellamy",
    "Crawford",
    "Drummond",
    "Everett",
    "Fletcher",
    "Gilmore",
    "Holloway",
];

pub(super) const STREETS: [&str; 16] = [
    "Acacia", "Birch", "Chapel", "Chestnut", "Dock", "Elm", "Foundry", "Garden", "Harbour", "Juniper", "Lakeside",
    "Market", "Orchard", "Quarry", "Station", "Windmill",
];

pub(super) const STREET_SUFFIXES: [&str; 8] = ["Avenue", "Close", "Court", "Drive", "Lane", "Road", "Square", "Street"];

pub(super) const CITIES: [&str; 16] = [
    "Ashford",
    "Brookhaven",
    "Castleton",
    "Deerfield",
    "Eastbourne",
    "Fairview",
    "Greenwich",
    "Highbury",
    "Kingsport",
    "Lakewood",
    "Milford",
    "Northgate",
    "Oakridge",
    "Riverton",
    "Springdale",
    "Westbrook",
];

pub(super) const REGIONS: [&str; 12] = [
    "Alabama",
    "Colorado",
    "Delaware",
    "Georgia",
    "Indiana",
    "Kentucky",
    "Michigan",
    "Nebraska",
    "Oregon",
    "Tennessee",
    "Vermont",
    "Wisconsin",
];

pub(super) const COUNTRIES: [&str; 12] = ["AT", "BR", "CA", "DE", "ES", "FR", "GB", "IT", "JP", "NL", "PL", "US"];

pub(super) const ADJECTIVES: [&str; 20] = [
    "Global",
    "Digital",
    "Strategic",
    "Integrated",
    "Dynamic",
    "Seamless",
    "Virtual",
    "Granular",
    "Robust",
    "Scalable",
    "Compelling",
    "Proactive",
    "Innovative",
    "Magnetic",
    "Sticky",
    "Vertical",
    "Wireless",
    "Frictionless",
    "Clicking",
    "Bleeding",
];

pub(super) const VERBS: [&str; 20] = [
    "aggregate",
    "brand",
    "cultivate",
    "deploy",
    "embrace",
    "enable",
    "evolve",
    "grow",
    "harness",
    "incubate",
    "leverage",
    "mesh",
    "morph",
    "optimise",
    "revamp",
    "scale",
    "seize",
    "target",
    "unleash",
    "whiteboard",
];

pub(super) const NOUNS: [&str; 20] = [
    "bandwidth",
    "channels",
    "communities",
    "content",
    "deliverables",
    "markets",
    "metrics",
    "models",
    "networks",
    "niches",
    "paradigms",
    "partnerships",
    "platforms",
    "portals",
    "relationships",
    "schemas",
    "solutions",
    "supply",
    "systems",
    "users",
];

const LOREM: [&str; 32] = [
    "ad", "alias", "animi", "aut", "commodi", "culpa", "dolor", "ducimus", "ea", "enim", "et", "facere", "fugit",
    "harum", "id", "ipsum", "labore", "magni", "modi", "nemo", "odit", "omnis", "placeat", "quae", "quia", "ratione",
    "sed", "sint", "tempora", "ut", "velit", "voluptas",
];

/// Picks a random word.
pub(super) fn pick<'a>(random: &mut Random, words: &[&'a str]) -> &'a str {
    words[random.below(words.len() as u64) as usize]
}

/// Generates a paragraph of 3 to 5 sentences of 8 to 14 words.
pub(super) fn paragraph(random: &mut Random) -> String {
    let sentence_count = 3 + random.below(3);
    let sentences: Vec<String> = (0..sentence_count).map(|_| sentence(random)).collect();
    sentences.join(" ")
}

fn sentence(random: &mut Random) -> String {
    let word_count = 8 + random.below(7);
    let words: Vec<&str> = (0..word_count).map(|_| pick(random, &LOREM)).collect();
    let text = words.join(" ");
    format!("{}{}.", text[..1].to_uppercase(), &text[1..])
}
