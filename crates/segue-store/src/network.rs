//! Network file systems: their locks and syncs do not promise what a log needs, so nothing is written there.

use std::io;
use std::path::Path;

/// The name of the network file system that a path lies on.
#[cfg(target_os = "linux")]
pub(crate) fn kind_of(path: &Path) -> io::Result<Option<String>> {
    let found = rustix::fs::statfs(path)?;
    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between architectures")]
    let magic = found.f_type as u64 & 0xffff_ffff;
    if let Some(name) = by_magic(magic) {
        return Ok(Some(name.to_owned()));
    }
    if magic != FUSE {
        return Ok(None);
    }
    // All FUSE file systems share one number; the mount table has their names.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let path = path.canonicalize()?;
    Ok(mounted_as(&mounts, &path).filter(|name| is_network_name(name)).map(str::to_owned))
}

/// The name of the network file system that a path lies on.
#[cfg(target_os = "macos")]
pub(crate) fn kind_of(path: &Path) -> io::Result<Option<String>> {
    let found = rustix::fs::statfs(path)?;
    let name: String =
        found.f_fstypename.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect();
    Ok(Some(name).filter(|name| is_network_name(name)))
}

/// The name of the network file system that a path lies on; here nothing is known of it.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn kind_of(_path: &Path) -> io::Result<Option<String>> {
    Ok(None)
}

#[cfg(target_os = "linux")]
const FUSE: u64 = 0x6573_5546;

#[cfg(target_os = "linux")]
fn by_magic(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        _ => return None,
    })
}

fn is_network_name(name: &str) -> bool {
    const NAMES: [&str; 16] = [
        "nfs",
        "nfs4",
        "smbfs",
        "cifs",
        "afpfs",
        "webdav",
        "davfs",
        "sshfs",
        "glusterfs",
        "ceph",
        "rclone",
        "s3fs",
        "goofys",
        "gcsfuse",
        "mfs",
        "juicefs",
    ];
    NAMES.contains(&name.strip_prefix("fuse.").unwrap_or(name))
}

/// The type of the mount that a path lies on: the one with the longest mount point above it, the last of equals.
#[cfg(target_os = "linux")]
fn mounted_as<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (left.split(' ').nth(4), right.split(' ').next()) else { continue };
        let point = point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
        if path.starts_with(&point) && best.is_none_or(|(len, _)| point.len() >= len) {
            best = Some((point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_number_and_by_name() {
        let mounts = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home/a\\040b rw - fuse.sshfs host:/x rw
31 22 0:41 / /home rw - fuse.gvfsd-fuse gvfs rw
32 31 0:42 / /home/disk rw - fuseblk /dev/sdb1 rw
";
        for (path, kind, network) in [
            ("/var/lib", "ext4", false),
            ("/home/a b/sessions", "fuse.sshfs", true),
            ("/home/else", "fuse.gvfsd-fuse", false),
            ("/home/disk/x", "fuseblk", false),
        ] {
            let found = mounted_as(mounts, Path::new(path));
            assert_eq!((found, found.map(is_network_name)), (Some(kind), Some(network)), "{path}");
        }
        let named = [0x6969, 0xff53_4d42, 0xef53, 0x0102_1994].map(by_magic);
        assert_eq!(named, [Some("NFS"), Some("SMB"), None, None]);
    }

    #[test]
    fn a_local_folder_is_not_on_the_network() {
        assert_eq!(kind_of(&std::env::temp_dir()).unwrap(), None);
    }
}
