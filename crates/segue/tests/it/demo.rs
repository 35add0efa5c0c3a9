//! The demo is a test of itself: it fails unless everything is as promised.

use crate::world::World;

#[test]
fn the_demo_keeps_its_promises_and_leaves_nothing() {
    let world = World::new();
    let scratch = world.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let ran = world.segue(&["demo"]).env("TMPDIR", &scratch).run();
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    insta::assert_snapshot!("demo", ran.shown());
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "its files are gone");
    assert!(!world.home().exists(), "the person's own sessions are not touched");
}
