//! The fault model: what each choice loses, keeps and tears.

use super::*;
use crate::site;

fn disk_with_dir() -> SimDisk {
    let disk = SimDisk::new();
    disk.create_dir(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk.settle();
    disk
}

fn create(disk: &SimDisk, path: &str) -> Arc<dyn DiskFile> {
    disk.open(Path::new(path), OpenMode::CreateNew).unwrap()
}

fn names(disk: &SimDisk) -> Vec<String> {
    disk.files().iter().map(|(path, _)| path.display().to_string()).collect()
}

fn text(disk: &SimDisk, path: &str) -> Option<String> {
    disk.contents(Path::new(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn images(disk: &SimDisk) -> Vec<Image> {
    Explorer::new(disk, 1).collect()
}

#[test]
fn data_needs_its_own_sync_and_the_name_needs_another() {
    let disk = disk_with_dir();
    let file = create(&disk, "/d/f");
    file.write_all_at(b"bytes", 0).unwrap();
    assert_eq!(names(&disk.crash_now(&Choice::AllLost)), [""; 0]);
    assert_eq!(names(&disk.crash_now(&Choice::DataKept)), [""; 0]);
    assert_eq!(text(&disk.crash_now(&Choice::NamesKept), "/d/f").unwrap(), "");
    assert_eq!(text(&disk.crash_now(&Choice::AllKept), "/d/f").unwrap(), "bytes");

    file.sync_data().unwrap();
    assert_eq!(names(&disk.crash_now(&Choice::AllLost)), [""; 0], "the name is not durable");
    assert_eq!(text(&disk.crash_now(&Choice::NamesKept), "/d/f").unwrap(), "bytes");
    disk.sync_dir(Path::new("/d")).unwrap();
    assert_eq!(text(&disk.crash_now(&Choice::AllLost), "/d/f").unwrap(), "bytes");
    assert_eq!(disk.choices(1), [Choice::AllLost], "nothing is open");
}

#[test]
fn a_journal_gives_every_earlier_moment() {
    let disk = disk_with_dir();
    let file = create(&disk, "/d/f");
    file.write_all_at(b"a", 0).unwrap();
    file.write_all_at(b"b", 1).unwrap();
    assert_eq!(disk.calls(), 3);
    let at = |call| text(&disk.crash(call, &Choice::AllKept), "/d/f");
    assert_eq!(
        [at(0), at(1), at(2), at(3)],
        [None, Some(""), Some("a"), Some("ab")].map(|text| text.map(str::to_owned))
    );
    assert_eq!(disk.crash(3, &Choice::AllKept).calls(), 0, "a fresh disk");
}

#[test]
fn length_is_lost_and_kept_with_the_data() {
    let disk = disk_with_dir();
    disk.set_contents(Path::new("/d/f"), b"0123456789");
    let file = disk.open(Path::new("/d/f"), OpenMode::Write).unwrap();
    file.set_len(4).unwrap();
    assert_eq!(text(&disk.crash_now(&Choice::AllLost), "/d/f").unwrap(), "0123456789");
    assert_eq!(text(&disk.crash_now(&Choice::AllKept), "/d/f").unwrap(), "0123");
    file.sync_data().unwrap();
    assert_eq!(text(&disk.crash_now(&Choice::AllLost), "/d/f").unwrap(), "0123");
}

#[test]
fn each_file_is_lost_or_kept_for_itself() {
    let disk = disk_with_dir();
    for name in ["/d/a", "/d/b", "/d/c"] {
        disk.set_contents(Path::new(name), b"old");
    }
    for name in ["/d/a", "/d/b", "/d/c"] {
        disk.open(Path::new(name), OpenMode::Write).unwrap().write_all_at(b"new", 0).unwrap();
    }
    let seen: BTreeSet<Vec<String>> = images(&disk)
        .iter()
        .filter(|image| image.call == 3)
        .map(|image| ["/d/a", "/d/b", "/d/c"].map(|name| text(&image.disk, name).unwrap()).to_vec())
        .collect();
    for mask in 0..8_u8 {
        let want = [0, 1, 2].map(|bit| if mask >> bit & 1 == 1 { "new" } else { "old" }.to_owned());
        assert!(seen.contains(want.as_slice()), "{want:?}");
    }
}

#[test]
fn more_files_than_can_be_listed_are_drawn() {
    let disk = disk_with_dir();
    let paths: Vec<String> = (0..70).map(|number| format!("/d/f{number}")).collect();
    for path in &paths {
        create(&disk, path).write_all_at(b"x", 0).unwrap();
    }
    let choices = disk.choices(1).into_iter();
    let drawn: Vec<SimDisk> = choices
        .filter(|choice| matches!(choice, Choice::ItemsRandom(_)))
        .map(|choice| disk.crash_now(&choice))
        .collect();
    assert_eq!(drawn.len(), 64);
    // The directory is an item too: where it was kept the names are there, and the files split.
    let named: Vec<&SimDisk> = drawn.iter().filter(|disk| !disk.files().is_empty()).collect();
    assert!((10..54).contains(&named.len()), "{}", named.len());
    for disk in named {
        let kept = disk.files().iter().filter(|(_, len)| *len == 1).count();
        assert!((10..60).contains(&kept), "{kept}");
    }
}

#[test]
fn the_last_write_is_torn_at_every_byte_and_sector() {
    let disk = disk_with_dir();
    disk.set_contents(Path::new("/d/f"), &[b'.'; 100]);
    let file = disk.open(Path::new("/d/f"), OpenMode::Write).unwrap();
    file.write_all_at(&[b'x'; 2000], 100).unwrap();
    let lens: BTreeSet<u64> = images(&disk)
        .iter()
        .filter(|image| matches!(image.choice, Choice::Torn(_)))
        .map(|image| image.disk.files()[0].1)
        .collect();
    let want: BTreeSet<u64> = (101..=164).chain([512, 1024, 1536, 2048]).collect();
    assert_eq!(lens, want);
    let torn = disk.crash_now(&Choice::Torn(3)).contents(Path::new("/d/f")).unwrap();
    assert!(torn.ends_with(b"..xxx"));
}

#[test]
fn sectors_are_kept_in_any_order() {
    let disk = disk_with_dir();
    disk.set_contents(Path::new("/d/f"), b"");
    let file = disk.open(Path::new("/d/f"), OpenMode::Write).unwrap();
    file.write_all_at(&[b'1'; 1024], 0).unwrap();
    file.write_all_at(&[b'2'; 1024], 1024).unwrap();
    let mut later_without_earlier = false;
    for seed in 0..64 {
        let bytes = disk.crash_now(&Choice::Scattered(seed)).contents(Path::new("/d/f")).unwrap();
        for (number, sector) in bytes.chunks(512).enumerate() {
            let full = if number < 2 { b'1' } else { b'2' };
            let whole = sector.iter().all(|byte| *byte == full);
            assert!(whole || sector.iter().all(|byte| *byte == 0), "a sector is whole or zero");
            later_without_earlier |= number == 2 && whole && bytes[0] == 0;
        }
    }
    assert!(later_without_earlier);
}

#[test]
fn a_rename_is_kept_without_the_data_and_the_data_without_the_rename() {
    let disk = disk_with_dir();
    disk.set_contents(Path::new("/d/f"), b"old");
    let file = create(&disk, "/d/f.tmp");
    file.write_all_at(b"new", 0).unwrap();
    disk.rename(Path::new("/d/f.tmp"), Path::new("/d/f")).unwrap();
    let renamed = disk.crash_now(&Choice::NamesKept);
    assert_eq!((text(&renamed, "/d/f").unwrap().as_str(), names(&renamed).len()), ("", 1));
    let lost = disk.crash_now(&Choice::DataKept);
    assert_eq!((text(&lost, "/d/f").unwrap().as_str(), names(&lost).len()), ("old", 1));
    // The created name alone: the rename was the second change.
    let created = disk.crash_now(&Choice::NameLost(1));
    assert_eq!(text(&created, "/d/f").unwrap(), "old");
    assert_eq!(text(&created, "/d/f.tmp").unwrap(), "new");
    // A rename draws the creation in, and never leaves two names of one file.
    let both = disk.crash_now(&Choice::NameKept(1));
    assert_eq!((text(&both, "/d/f").unwrap().as_str(), names(&both).len()), ("", 1));

    file.sync_data().unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    let synced = disk.crash_now(&Choice::AllLost);
    assert_eq!((text(&synced, "/d/f").unwrap().as_str(), names(&synced).len()), ("new", 1));
}

#[test]
fn a_rename_between_directories_needs_both_synced_and_is_whole() {
    let disk = disk_with_dir();
    disk.set_contents(Path::new("/d/f"), b"x");
    disk.set_contents(Path::new("/e/g"), b"y");
    disk.rename(Path::new("/d/f"), Path::new("/e/f")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    assert_eq!(names(&disk.crash_now(&Choice::AllLost)), ["/d/f", "/e/g"]);
    for image in images(&disk) {
        assert_eq!(names(&image.disk).len(), 2, "{:?}", image.choice);
    }
    disk.sync_dir(Path::new("/e")).unwrap();
    assert_eq!(names(&disk.crash_now(&Choice::AllLost)), ["/e/f", "/e/g"]);
}

#[test]
fn a_removed_file_may_come_back() {
    let disk = disk_with_dir();
    disk.set_contents(Path::new("/d/f"), b"x");
    disk.remove_file(Path::new("/d/f")).unwrap();
    assert_eq!(text(&disk.crash_now(&Choice::AllLost), "/d/f").unwrap(), "x");
    assert_eq!(text(&disk.crash_now(&Choice::AllKept), "/d/f"), None);
    disk.sync_dir(Path::new("/d")).unwrap();
    assert_eq!(text(&disk.crash_now(&Choice::AllLost), "/d/f"), None);
}

#[test]
fn a_name_in_a_lost_directory_is_lost() {
    let disk = SimDisk::new();
    disk.create_dir(Path::new("/d")).unwrap();
    let file = create(&disk, "/d/f");
    file.write_all_at(b"x", 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    assert!(!disk.crash_now(&Choice::AllLost).exists(Path::new("/d")).unwrap());
    disk.sync_dir(Path::new("/")).unwrap();
    assert_eq!(text(&disk.crash_now(&Choice::AllLost), "/d/f").unwrap(), "x");
}

#[test]
fn faults_hit_the_call_they_name_once() {
    let disk = disk_with_dir();
    disk.fail_call(2, SimFault::Eio);
    disk.fail_call(3, SimFault::Enospc);
    disk.fail_call(4, SimFault::Eintr);
    disk.fail_call(5, SimFault::ShortWrite);
    let file = create(&disk, "/d/f");
    let errors: Vec<i32> = (0..4)
        .map(|_| file.write_all_at(b"123456", 0).unwrap_err().raw_os_error().unwrap())
        .collect();
    assert_eq!(errors, [5, 28, 4, 28]);
    assert_eq!(text(&disk, "/d/f").unwrap(), "123", "a short write leaves a prefix");
    file.write_all_at(b"123456", 0).unwrap();
    assert_eq!(text(&disk, "/d/f").unwrap(), "123456");
    assert_eq!(disk.calls(), 6, "failed calls have numbers");
    disk.fail_call(7, SimFault::Eio);
    assert!(disk.remove_file(Path::new("/d/f")).is_err());
    assert_eq!(names(&disk), ["/d/f"]);
}

#[test]
fn a_second_sync_after_a_failed_one_saves_nothing() {
    let disk = disk_with_dir();
    disk.set_contents(Path::new("/d/f"), b"old");
    let file = disk.open(Path::new("/d/f"), OpenMode::Write).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    disk.fail_call(2, SimFault::Eio);
    file.sync_data().unwrap_err();
    assert_eq!(text(&disk.crash_now(&Choice::AllKept), "/d/f").unwrap(), "new");
    file.write_all_at(b"!", 3).unwrap();
    file.sync_data().unwrap();
    for choice in disk.choices(1) {
        assert_eq!(text(&disk.crash_now(&choice), "/d/f").unwrap(), "old!");
    }
    assert_eq!(text(&disk, "/d/f").unwrap(), "new!", "the running system still sees it");
}

#[test]
fn a_dropped_site_does_not_sync() {
    let disk = disk_with_dir();
    let run = |disk: &SimDisk| {
        disk.create_dir(Path::new("/d/q17")).unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        let file = create(disk, "/d/q17/r00000001.qlog");
        file.write_all_at(b"x", 0).unwrap();
        let guard = site("roll");
        file.sync_data().unwrap();
        drop(guard);
        disk.sync_dir(Path::new("/d/q17")).unwrap();
    };
    let dropped = disk.copy();
    run(&disk);
    let sites = disk.sync_sites();
    assert_eq!(
        sites,
        ["sync_data d/qN/rN.qlog #roll", "sync_dir /", "sync_dir d", "sync_dir d/qN"]
    );
    assert_eq!(disk.crash_now(&Choice::AllLost).files()[0].1, 1);

    dropped.drop_sync(&sites[0]);
    run(&dropped);
    assert_eq!(dropped.crash_now(&Choice::AllLost).files()[0].1, 0);
}

#[test]
fn images_of_one_run_repeat_and_do_not_share_writes() {
    let disk = disk_with_dir();
    let file = create(&disk, "/d/f");
    for number in 0..5 {
        file.write_all_at(&[b'x'; 700], number * 700).unwrap();
    }
    let first: Vec<(u64, u128)> = images(&disk).iter().map(|i| (i.call, i.fingerprint)).collect();
    let second: Vec<(u64, u128)> = images(&disk).iter().map(|i| (i.call, i.fingerprint)).collect();
    assert_eq!(first, second);
    assert!(first.len() > 300);

    let image = disk.crash_now(&Choice::AllKept);
    assert_eq!(image.fingerprint(), disk.fingerprint());
    image.open(Path::new("/d/f"), OpenMode::Write).unwrap().write_all_at(b"y", 0).unwrap();
    assert_ne!(image.fingerprint(), disk.fingerprint());
    assert!(text(&disk, "/d/f").unwrap().starts_with('x'));
    let from_journal = disk.crash(3, &Choice::Scattered(9)).fingerprint();
    assert_eq!(from_journal, disk.crash(3, &Choice::Scattered(9)).fingerprint());
}

#[test]
fn without_a_journal_the_power_can_still_be_cut_now() {
    let disk = disk_with_dir();
    disk.forget_journal();
    let file = create(&disk, "/d/f");
    disk.sync_dir(Path::new("/d")).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    assert_eq!(text(&disk.crash_now(&Choice::AllLost), "/d/f").unwrap(), "");
    assert_eq!(text(&disk.crash_now(&Choice::AllKept), "/d/f").unwrap(), "x");
}

#[test]
fn damage_is_put_in_and_taken_out() {
    let disk = SimDisk::new();
    disk.set_contents(Path::new("/a/b/c"), b"x");
    disk.set_contents(Path::new("/a/d"), b"y");
    assert_eq!(names(&disk), ["/a/b/c", "/a/d"]);
    assert_eq!(disk.choices(1), [Choice::AllLost]);
    disk.remove(Path::new("/a/b"));
    assert_eq!(names(&disk), ["/a/d"]);
    let before = disk.fingerprint();
    disk.set_contents(Path::new("/a/d"), b"z");
    assert_ne!(disk.fingerprint(), before);
}

/// A run of many calls over some files: images must be cheap enough for a hundred thousand of them.
#[test]
fn images_are_cheap() {
    let disk = disk_with_dir();
    for number in 0..20 {
        disk.set_contents(Path::new(&format!("/d/f{number}")), &vec![1; 60_000]);
    }
    let open = |number| disk.open(Path::new(&format!("/d/f{number}")), OpenMode::Write).unwrap();
    for call in 0..100_u64 {
        let file = open(call % 20);
        file.write_all_at(&[2; 900], 60_000 + call * 50).unwrap();
        if call % 4 == 3 {
            file.sync_data().unwrap();
        }
    }
    let images = Explorer::new(&disk, 1).count();
    println!("{images} images");
    assert!(images > 8_000, "{images}");
}

/// A second name is a change of its directory like any other, and a file lives until its last name is gone for good.
#[test]
fn a_link_needs_a_sync_of_its_directory() {
    let disk = disk_with_dir();
    disk.set_contents(Path::new("/d/f"), b"bytes");
    disk.link(Path::new("/d/f"), Path::new("/l")).unwrap();
    assert_eq!(text(&disk.crash_now(&Choice::AllLost), "/l"), None);
    assert_eq!(text(&disk.crash_now(&Choice::AllKept), "/l").unwrap(), "bytes");
    disk.remove_file(Path::new("/d/f")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let image = disk.crash_now(&Choice::AllLost);
    assert_eq!((text(&image, "/d/f"), text(&image, "/l").unwrap()), (None, "bytes".to_owned()));
}
