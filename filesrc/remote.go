package filesrc

import (
	"slices"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

var _ hasher.RemoteSource = (*File)(nil)

// remoteTypes are file systems that another machine, or another program,
// answers for.
var remoteTypes = []int64{
	unix.AFS_FS_MAGIC,
	unix.AFS_SUPER_MAGIC,
	unix.CEPH_SUPER_MAGIC,
	unix.CIFS_SUPER_MAGIC,
	unix.CODA_SUPER_MAGIC,
	unix.FUSE_SUPER_MAGIC,
	unix.NFS_SUPER_MAGIC,
	unix.SMB2_SUPER_MAGIC,
	unix.SMB_SUPER_MAGIC,
	unix.V9FS_MAGIC,
}

// Remote reports whether the file is on a file system whose answers can be
// long in coming, or never come.
func (f *File) Remote() bool {
	h, err := f.acquire()
	if err != nil {
		return false
	}
	defer f.release(h)
	return h.isOn(remoteTypes)
}

// isOn reports whether the file is on a file system of one of the types.
func (h *handle) isOn(types []int64) bool {
	h.askType.Do(func() {
		var st unix.Statfs_t
		if retry(func() error { return unix.Fstatfs(h.fd, &st) }) == nil {
			h.fsType = int64(st.Type)
		}
	})
	return slices.Contains(types, h.fsType)
}
