package hasher

import "time"

// maxComplained bounds the blocks whose failures are remembered as logged.
const maxComplained = 1024

// noteFailure keeps an error for Status, and logs it, but not again for the
// same block until that was read or written: programs try a bad sector over
// and over.
func (im *Image) noteFailure(e *ReadError) {
	b := e.Offset / int64(im.spec.BlockSize)
	im.mu.Lock()
	im.readErrors++
	im.failure = &Failure{e.Offset, e.Length, e.Err.Error(), time.Now()}
	again := im.complained[b]
	if len(im.complained) >= maxComplained {
		clear(im.complained)
	}
	im.complained[b] = true
	im.mu.Unlock()
	if !again {
		im.log.Error("cannot read", "offset", e.Offset, "length", e.Length, "cause", e.Err)
	}
}

// goodLocked takes note that n blocks from b on have been read, or written.
func (im *Image) goodLocked(b, n int64) {
	for bad := range im.complained {
		if b <= bad && bad < b+n {
			delete(im.complained, bad)
		}
	}
}
