// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package child

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockCode asks the kernel for a time, and adds the seconds at clockShift to the one of the wall clock:
//
//	mov eax, 228; syscall; test edi, edi; jnz done; mov rcx, [rip+14]; add [rsi], rcx; done: ret
var clockCode = []byte{0xb8, 228, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x75, 0x0a, 0x48, 0x8b, 0x0d, 14, 0, 0, 0, 0x48, 0x01, 0x0e, 0xc3}

const clockShift = 32 // after the start of clockCode

const patience = 10_000 // times that a state of a process is looked at, with a millisecond between them

const jump = 0xe9 // the first byte of a jump, which four bytes follow

// SetClock has a process that this one has started, or that root may change, see a wall clock that is wrong by whole
// seconds; 0: it is right again. The monotonic clock stays right, as after a correction of the other one. Programs read
// clocks by code that the kernel maps into each process, and the process's own copy of it is changed.
func SetClock(pid int, by time.Duration) error {
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	defer mem.Close()
	from, image, err := vdso(pid, mem)
	if err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	entry, code, err := places(image)
	if err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	write := func(at int, b []byte) {
		if err == nil {
			_, err = mem.WriteAt(b, from+int64(at))
		}
	}
	write(code+clockShift, binary.LittleEndian.AppendUint64(nil, uint64(int64(by/time.Second))))
	if image[entry] == jump || err != nil {
		return err
	}
	resume, err := stopOutside(pid, from+int64(entry), from+int64(entry)+5)
	if err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	defer resume()
	write(code, clockCode)
	write(entry, binary.LittleEndian.AppendUint32([]byte{jump}, uint32(int32(code-entry-5))))
	return err
}

// vdso reads the code that the kernel maps into a process, and where it is. A process that was just started may not have it
// yet: whoever started it goes on as soon as its files are closed, and they are closed before.
func vdso(pid int, mem *os.File) (from int64, image []byte, err error) {
	for range patience {
		if from, image, err = mappedVDSO(pid, mem); !errors.Is(err, errNoVDSO) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return from, image, err
}

var errNoVDSO = errors.New("the process has no vDSO")

func mappedVDSO(pid int, mem *os.File) (from int64, image []byte, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, nil, err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		var to int64
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err != nil {
			return 0, nil, err
		}
		image = make([]byte, to-from)
		_, err = mem.ReadAt(image, from)
		return from, image, err
	}
	return 0, nil, errNoVDSO
}

// places returns where clock_gettime begins, and where other code fits behind all that there is.
func places(image []byte) (entry, code int, err error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, 0, err
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return 0, 0, err
	}
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "__vdso_clock_gettime" })
	if i < 0 {
		return 0, 0, errors.New("the vDSO has no clock_gettime")
	}
	end := 0
	for _, s := range f.Sections {
		if s.Type != elf.SHT_NOBITS {
			end = max(end, int(s.Offset+s.Size))
		}
	}
	const header = 64 // of a section; the table of sections is mapped, too
	end = max(end, int(binary.LittleEndian.Uint64(image[40:]))+header*len(f.Sections))
	code = (end + 15) &^ 15
	if code+clockShift+8 > len(image) {
		return 0, 0, errors.New("the vDSO has no room")
	}
	return int(symbols[i].Value), code, nil
}

// stopOutside stops a process with no thread between two addresses, until resume.
func stopOutside(pid int, from, to int64) (resume func(), err error) {
	resume = func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	for range patience {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return nil, err
		}
		if err = isOutside(pid, from, to); err == nil {
			return resume, nil
		}
		if !errors.Is(err, errRuns) {
			resume()
		}
		time.Sleep(time.Millisecond)
	}
	resume()
	return nil, err
}

var errRuns = errors.New("a thread has not stopped yet")

// isOutside returns an error if a thread runs, or is between two addresses.
func isOutside(pid int, from, to int64) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	if err != nil || len(threads) == 0 {
		return fmt.Errorf("no threads: %w", err)
	}
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		words := strings.Fields(string(text))
		if len(words) < 3 {
			return errRuns
		}
		at, err := strconv.ParseInt(words[len(words)-1], 0, 64)
		if err != nil {
			return err
		}
		if at >= from && at < to {
			return errors.New("a thread reads the clock")
		}
	}
	return nil
}
