//! scratch
use queen_sim::crash::*;
use queen_sim::variant::*;
fn main() {
    let which = std::env::args().nth(1);
    for variant in VARIANTS {
        if which.as_deref().is_some_and(|name| name != variant.name) { continue }
        let t = std::time::Instant::now();
        let e = Exploration { variant, seed: 1, depth: Depth::GATE, dropped: &[], violations_max: 5 };
        match e.run() { Ok((d, r)) => println!("{} ok calls {} entries {}", variant.name, d.calls(), r.history.digests.len()), Err(x) => { println!("{} {x}", variant.name); continue } }
        println!("  run took {:?}", t.elapsed());
        let f = e.explore();
        println!("  calls {} built {} distinct {} opened {} reopened {} rec {} second {}/{} in {:?}", f.calls, f.built, f.distinct.len(), f.opened, f.reopened, f.recovery, f.second_runs, f.second, t.elapsed());
        for v in &f.violations { println!("   {v}"); }
        let mut s: Vec<_> = f.sites.iter().collect(); s.sort();
        for v in s { println!("   {v}"); }
    }
}
