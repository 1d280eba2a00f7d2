//! Random numbers that are the same on all ranks and machines.

use std::sync::Arc;

/// Fills a Q: given the step, the parameter and room for the numbers, which are column by column.
pub type Normals = Arc<dyn Fn(u64, usize, &mut [f64]) + Send + Sync>;

/// Numbers that depend on seed, step and parameter alone: not on what was drawn before, so ranks agree even if a step
/// failed on some, and in whatever buckets a parameter lies.
pub fn seeded(seed: u64) -> Normals {
    Arc::new(move |step, param, target| {
        let mut state = seed;
        for word in [step, param as u64] {
            state = splitmix(&mut state) ^ word;
        }
        target.iter_mut().for_each(|value| *value = normal(&mut state));
    })
}

/// Nearly normal, with mean 0 and variance 1: the sum of twelve uniform numbers less six. Exact, where a logarithm or
/// cosine would be rounded as the machine's library does. Its tails end at 6, which a random direction does not feel.
fn normal(state: &mut u64) -> f64 {
    let mut sum = 0u32;
    for _ in 0..3 {
        let bits = splitmix(state);
        sum += [0, 16, 32, 48].map(|shift| (bits >> shift) as u16).into_iter().map(u32::from).sum::<u32>();
    }
    (f64::from(sum) + 6.0) / 65536.0 - 6.0
}

/// SplitMix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number generators*, 2014).
const fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: u64, step: u64, param: usize, count: usize) -> Vec<f64> {
        let mut values = vec![0.0; count];
        seeded(seed)(step, param, &mut values);
        values
    }

    #[test]
    fn numbers_are_normal_enough() {
        let values = draw(7, 0, 0, 20_000);
        let mean = values.iter().sum::<f64>() / 20_000.0;
        let variance = values.iter().map(|value| value * value).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean}, {variance}");
        let within = values.iter().filter(|value| value.abs() < 1.0).count();
        assert!((13_200..14_100).contains(&within), "{within}: 68.3 % lie within one deviation");
    }

    #[test]
    fn numbers_are_those_of_seed_step_and_parameter() {
        assert_eq!(draw(1, 2, 3, 4), draw(1, 2, 3, 4));
        for other in [draw(2, 2, 3, 4), draw(1, 3, 3, 4), draw(1, 2, 2, 4), draw(1, 3, 2, 4)] {
            assert_ne!(other, draw(1, 2, 3, 4));
        }
    }

    #[test]
    fn numbers_are_the_same_on_every_machine() {
        // What its authors' program prints first for a seed of 0.
        assert_eq!(splitmix(&mut 0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(draw(0, 0, 0, 2), [-0.5325927734375, 1.1541290283203125]);
    }
}
