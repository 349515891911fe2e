//! The views of an image that an encoder processes, and the tokens that they become.

use serde::{Deserialize, Serialize};

use super::PreprocessConfig;
use super::VisionShape;

/// How an image becomes views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Views {
    Scaled(Scaling),
    Tiled(Tiling),
}

/// One view of nearly the image's aspect ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scaling {
    /// Pixels of each side of a patch.
    pub patch: u64,
    /// Patches of each side of the square that becomes one token.
    pub merge: u64,
    pub min_pixels: u64,
    pub max_pixels: u64,
}

/// A square of the whole image, and tiles of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tiling {
    /// Pixels of each side of the view of the whole.
    pub base: u64,
    /// Pixels of each side of a tile; of the only view without tiles.
    pub tile: u64,
    /// Whether there are tiles.
    pub crop: bool,
    /// With more than one, an image that fits into a tile is not cut.
    pub min_tiles: u64,
    pub max_tiles: u64,
    /// Whether the encoder refuses other sizes.
    pub is_fixed: bool,
    /// Pixels of each side of a patch.
    pub patch: u64,
    /// Patches of each side of the square that becomes one token.
    pub downsample: u64,
    /// Whether one more token follows each row of tokens.
    pub row_ends: bool,
    /// Whether one more token follows all views.
    pub separator: bool,
}

/// Views of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub count: u64,
    /// In pixels.
    pub width: u64,
    pub height: u64,
}

/// Images as the encoders get them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Encoded {
    pub images: u64,
    /// Tiles and views of whole images.
    pub views: u64,
    /// Patches of the first encoder.
    pub patches: u64,
    /// Positions in the prompt.
    pub tokens: u64,
    /// The same, for each image.
    pub tokens_of_images: Vec<u64>,
    /// The views, grouped by equal size.
    pub sizes: Vec<View>,
}

impl Encoded {
    /// The images of `batch` sequences with equal ones.
    pub fn of_batch(&self, batch: u64) -> Encoded {
        let times = |n: u64| n.saturating_mul(batch);
        let view = |view: &View| View { count: times(view.count), ..*view };
        Encoded {
            images: times(self.images),
            views: times(self.views),
            patches: times(self.patches),
            tokens: times(self.tokens),
            tokens_of_images: self.tokens_of_images.clone(),
            sizes: self.sizes.iter().map(view).collect(),
        }
    }
}

/// Above this, the grids to choose from would be too many.
const MAX_TILES: u64 = 64;

impl VisionShape {
    /// The views and tokens of images of these widths and heights.
    pub fn encoded(&self, images: &[(u32, u32)], preprocess: Option<&PreprocessConfig>) -> Encoded {
        let views = match preprocess.filter(|preprocess| preprocess.is_enabled()) {
            Some(preprocess) => self.views.prepared(preprocess),
            None => self.views,
        };
        let patch = self.patch_size();
        let mut encoded = Encoded { images: images.len() as u64, ..Encoded::default() };
        for &(width, height) in images {
            let (sizes, tokens) = match &views {
                Views::Scaled(scaling) => scaling.views(width.into(), height.into()),
                Views::Tiled(tiling) => tiling.views(width.into(), height.into()),
            };
            encoded.tokens = encoded.tokens.saturating_add(tokens);
            encoded.tokens_of_images.push(tokens);
            for view in sizes {
                encoded.views = encoded.views.saturating_add(view.count);
                let patches = (view.width / patch).saturating_mul(view.height / patch);
                encoded.patches = encoded.patches.saturating_add(patches.saturating_mul(view.count));
                let same = |other: &&mut View| (other.width, other.height) == (view.width, view.height);
                match encoded.sizes.iter_mut().find(same) {
                    Some(group) => group.count = group.count.saturating_add(view.count),
                    None => encoded.sizes.push(view),
                }
            }
        }
        encoded
    }

    /// Pixels of each side of a patch.
    pub(super) fn patch_size(&self) -> u64 {
        let patches = self.encoders.iter().find_map(|encoder| encoder.patches);
        patches.map_or(1, |patches| patches.size.max(1))
    }
}

impl Views {
    /// With the sizes of a configuration, where the model has a use for them.
    pub fn prepared(self, preprocess: &PreprocessConfig) -> Views {
        let or = |given: Option<u32>, own: u64| given.map_or(own, u64::from);
        match self {
            Views::Scaled(own) => Views::Scaled(Scaling {
                min_pixels: or(preprocess.min_pixels, own.min_pixels),
                max_pixels: or(preprocess.max_pixels, own.max_pixels),
                ..own
            }),
            Views::Tiled(own) => {
                let crop = preprocess.crop_mode.unwrap_or(own.crop);
                if own.is_fixed {
                    return Views::Tiled(Tiling { crop, ..own });
                }
                Views::Tiled(Tiling {
                    base: or(preprocess.base_size, own.base),
                    tile: or(preprocess.image_size, own.tile),
                    patch: or(preprocess.patch_size, own.patch),
                    downsample: or(preprocess.downsample_ratio, own.downsample),
                    crop,
                    ..own
                })
            }
        }
    }
}

impl Scaling {
    /// The view of an image, and its tokens: sides are multiples of a token's, as near to the image's as the
    /// limits allow.
    fn views(&self, width: u64, height: u64) -> (Vec<View>, u64) {
        let token = self.patch.max(1).saturating_mul(self.merge.max(1));
        let (w, h, factor) = (width.max(1) as f64, height.max(1) as f64, token as f64);
        let (least, most) = (self.min_pixels as f64, self.max_pixels.max(1) as f64);
        let nearest = |side: f64| (side / factor).round_ties_even() * factor;
        let (mut wide, mut high) = (nearest(w), nearest(h));
        if wide * high > most {
            let shrink = (w * h / most).sqrt();
            let below = |side: f64| ((side / shrink / factor).floor() * factor).max(factor);
            (wide, high) = (below(w), below(h));
        } else if wide * high < least {
            let grow = (least / (w * h)).sqrt();
            let above = |side: f64| (side * grow / factor).ceil() * factor;
            (wide, high) = (above(w), above(h));
        }
        let (wide, high) = (wide as u64, high as u64);
        let tokens = (wide / token).saturating_mul(high / token);
        (vec![View { count: 1, width: wide, height: high }], tokens)
    }
}

impl Tiling {
    /// The views of an image, and their tokens.
    fn views(&self, width: u64, height: u64) -> (Vec<View>, u64) {
        let square = |count: u64, side: u64| View { count, width: side, height: side };
        let separator = u64::from(self.separator);
        if !self.crop {
            let side = self.tokens_of_side(self.tile);
            return (vec![square(1, self.tile)], self.rows_of_tokens(side, side).saturating_add(separator));
        }
        let side = self.tokens_of_side(self.base);
        let whole = self.rows_of_tokens(side, side).saturating_add(separator);
        let (columns, rows) = self.grid(width.max(1), height.max(1));
        if columns * rows == 1 {
            return (vec![square(1, self.base)], whole);
        }
        let side = self.tokens_of_side(self.tile);
        let tiles = self.rows_of_tokens(side.saturating_mul(columns), side.saturating_mul(rows));
        (vec![square(columns * rows, self.tile), square(1, self.base)], whole.saturating_add(tiles))
    }

    fn tokens_of_side(&self, side: u64) -> u64 {
        (side / self.patch.max(1)).div_ceil(self.downsample.max(1))
    }

    fn rows_of_tokens(&self, columns: u64, rows: u64) -> u64 {
        columns.saturating_add(u64::from(self.row_ends)).saturating_mul(rows)
    }

    /// Columns and rows of tiles: those whose aspect ratio is nearest to the image's; of equally near ones
    /// the larger, if the image has more than half of its pixels.
    fn grid(&self, width: u64, height: u64) -> (u64, u64) {
        if self.min_tiles > 1 && width.max(height) <= self.tile {
            return (1, 1);
        }
        let most = self.max_tiles.min(MAX_TILES);
        let of_width = |columns: u64| (1..=most).map(move |rows| (columns, rows));
        let mut grids: Vec<(u64, u64)> = (1..=most).flat_map(of_width).collect();
        grids.retain(|(columns, rows)| (self.min_tiles..=most).contains(&(columns * rows)));
        grids.sort_by_key(|(columns, rows)| columns * rows);
        let (ratio, area) = (width as f64 / height as f64, width as f64 * height as f64);
        let (mut best, mut least) = ((1, 1), f64::INFINITY);
        for (columns, rows) in grids {
            let difference = (ratio - columns as f64 / rows as f64).abs();
            let pixels = (self.tile as f64).powi(2) * (columns * rows) as f64;
            if difference < least || (difference == least && area > 0.5 * pixels) {
                (best, least) = ((columns, rows), difference);
            }
        }
        best
    }
}
