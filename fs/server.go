package fs

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// A Server serves a mount. Its methods may be called from several goroutines at
// once.
type Server struct {
	fuse       *fuse.Server
	m          *mount
	mountpoint string
	direct     bool // mounted and unmounted by this process, not by fusermount3
	handed     bool // mounted by somebody else, who gave us /dev/fuse

	// self is what /proc says of the mount, nil where that is not known, and
	// id which mount it is.
	self *mountinfo.Info
	id   mountID
}

// Wait returns when the mount is gone and nobody uses it any more. It fails
// when the kernel ended the connection under a live mount, which is then
// detached: everything in it would answer ENOTCONN. Before Linux 6.8 that cannot
// be told from an end after which another mount was made, and is left alone.
func (s *Server) Wait() error {
	s.fuse.Wait()
	s.m.close()
	left, err := s.mounts()
	if err != nil || len(left) == 0 || !s.id.unique {
		return err
	}
	for _, mnt := range left {
		err = errors.Join(err, s.detach(mnt.Mountpoint))
	}
	if err != nil {
		return fmt.Errorf("the kernel ended the connection to %s, and it cannot be unmounted: %w", s.mountpoint, err)
	}
	return fmt.Errorf("the kernel ended the connection to %s, which was unmounted: mount it again", s.mountpoint)
}

// Unmount unmounts, and fails with EBUSY while something is in use. A mount
// that somebody else took away is no error.
func (s *Server) Unmount() error {
	if s.handed {
		return errors.New("unmount: another program made the mount, and alone knows where: use fusermount3 -u")
	}
	if s.gone() {
		return nil
	}
	err := s.fuse.Unmount()
	if err == nil || errors.Is(err, unix.EINVAL) && !s.mounted() {
		return nil // EINVAL: somebody else did it
	}
	if s.direct {
		return fmt.Errorf("unmount %s: %w", s.mountpoint, err)
	}
	// fusermount3 tells why in words only, which are for people.
	text := oneLine(err.Error())
	if s.mounted() {
		return fmt.Errorf("unmount %s: %s: %w", s.mountpoint, text, unix.EBUSY)
	}
	return fmt.Errorf("unmount %s: %s", s.mountpoint, text)
}

// Detach takes the mount out of the tree of names at once. It is served until
// the last file in it is closed.
func (s *Server) Detach() error {
	if s.handed {
		return s.Unmount()
	}
	if s.gone() {
		return nil
	}
	return s.detach(s.mountpoint)
}

func (s *Server) detach(path string) error {
	if s.direct {
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("detach %s: %w", path, err)
		}
		return nil
	}
	helper, err := exec.LookPath("fusermount3")
	if err != nil {
		helper = "/bin/fusermount3" // mount(8) starts us without a PATH
	}
	out, err := exec.Command(helper, "-u", "-z", "--", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("detach %s: %w: %s", path, err, oneLine(string(out)))
	}
	return nil
}

// oneLine makes a line of what another program said.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// A mountID tells a mount from others. Its device number does not: the kernel
// gives that of a mount that is gone to the next one.
type mountID struct {
	id uint64
	// unique: no other mount gets this id until the machine is started anew.
	// So it is since Linux 6.8; older ones give it to the next mount too.
	unique bool
}

// mountIDOf returns which mount is seen at path. It asks no FUSE server.
func mountIDOf(path string) (mountID, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT,
		unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE, &st)
	return mountID{st.Mnt_id, st.Mask&unix.STATX_MNT_ID_UNIQUE != 0}, err
}

// identify notes which mount was made. Without that nothing is taken away later
// that could be another's.
func (s *Server) identify() (err error) {
	if s.self, err = topMount(s.mountpoint); err != nil || s.self == nil {
		return err
	}
	if s.id, err = mountIDOf(s.mountpoint); err != nil {
		s.self = nil
	}
	return err
}

// mounts returns where our file system is mounted in this mount namespace:
// where we put it, and wherever somebody bound it to. It returns nothing once
// the mount that we made is gone, since the device number can then be
// another's.
func (s *Server) mounts() ([]*mountinfo.Info, error) {
	if s.self == nil {
		return nil, nil
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter(Type))
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", s.mountpoint, err)
	}
	var same []*mountinfo.Info
	found := false
	for _, mnt := range mounts {
		if mnt.Major == s.self.Major && mnt.Minor == s.self.Minor {
			same = append(same, mnt)
			id, err := mountIDOf(mnt.Mountpoint)
			found = found || err == nil && id == s.id
		}
	}
	if !found {
		return nil, nil
	}
	return same, nil
}

func (s *Server) mounted() bool {
	mounts, err := s.mounts()
	return err == nil && len(mounts) > 0
}

// gone reports whether somebody else took the mount away, so that what is seen
// at the mount point now is not ours.
func (s *Server) gone() bool {
	mounts, err := s.mounts()
	return s.self != nil && err == nil && len(mounts) == 0
}

// topMount returns the mount that is seen at path, nil if path is no mount
// point.
func topMount(path string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(func(mnt *mountinfo.Info) (skip, stop bool) {
		return mnt.Mountpoint != path, false
	})
	if err != nil || len(mounts) == 0 {
		return nil, err
	}
	return mounts[len(mounts)-1], nil // it covers the others
}

// clearFailed removes what a mount that failed halfway has left. before is what
// was mounted there already.
func (s *Server) clearFailed(before *mountinfo.Info) {
	if s.handed {
		return
	}
	now, err := topMount(s.mountpoint)
	if err != nil || now == nil || now.FSType != Type || before != nil && before.ID == now.ID {
		return
	}
	_ = s.detach(s.mountpoint) // the failure itself is what is reported
}
