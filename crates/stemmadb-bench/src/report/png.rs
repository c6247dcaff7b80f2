//! PNG versions of plots, for viewers without SVG.

use std::sync::{Arc, OnceLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

use crate::Result;

/// Pixels per SVG unit.
const DENSITY: f32 = 2.0;

/// Renders an SVG text.
pub(super) fn draw(svg: &str) -> Result<Vec<u8>> {
    let options = Options { fontdb: fonts()?, ..Options::default() };
    let tree = Tree::from_str(svg, &options)?;
    let size = tree.size().to_int_size().scale_by(DENSITY).ok_or("a plot has no size")?;
    let mut picture = Pixmap::new(size.width(), size.height()).ok_or("a plot has no size")?;
    resvg::render(&tree, Transform::from_scale(DENSITY, DENSITY), &mut picture.as_mut());
    Ok(picture.encode_png()?)
}

/// Loads the system's fonts, without which plots would have no text.
fn fonts() -> Result<Arc<Database>> {
    static FONTS: OnceLock<Arc<Database>> = OnceLock::new();
    let fonts = FONTS.get_or_init(|| {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        let sans = fonts.faces().find(|face| face.families.iter().any(|(name, _)| name.contains("Sans")));
        if let Some(name) = sans.and_then(|face| face.families.first()).map(|(name, _)| name.clone()) {
            fonts.set_sans_serif_family(name);
        }
        Arc::new(fonts)
    });
    match fonts.is_empty() {
        true => Err("there are no fonts for the plots: install Debian's fonts-dejavu-core".into()),
        false => Ok(fonts.clone()),
    }
}
