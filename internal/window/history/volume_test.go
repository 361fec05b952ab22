// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func openVolume(t *testing.T, dir string, maxBytes int64, log *bytes.Buffer) *Volume {
	t.Helper()
	cfg := VolumeConfig{Dir: dir, MaxBytes: maxBytes}
	if log != nil {
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	}
	v, err := OpenVolume(cfg)
	if err != nil {
		t.Fatal(err)
	}
	v.sync = func(*os.File) error { return nil } // thousands of minutes
	// Until here the volume is in use: the collector would close the lock of one that is not.
	t.Cleanup(func() { _ = v.Close() })
	return v
}

// restart closes a volume, and reads it into an empty store.
func restart(t *testing.T, v *Volume, now time.Time) (*Volume, *Store, Loaded) {
	t.Helper()
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	again, s := openVolume(t, v.cfg.Dir, v.cfg.MaxBytes, nil), New(Config{})
	return again, s, again.Load(s, now)
}

func record(r *Recorder, minute int, rows map[Workload][]Value) {
	for w, values := range rows {
		r.Add(at(minute), w, values)
	}
	r.record(at(minute))
}

func TestARestartKeepsTheHistory(t *testing.T) {
	v, s := openVolume(t, t.TempDir(), 0, nil), New(Config{})
	r := NewRecorder(s, v, slog.New(slog.DiscardHandler))
	w := workload("ml", "chat")
	for minute := range 1000 { // three segments
		if minute%10 != 3 {
			record(r, minute, map[Workload][]Value{w: one(float64(minute)), workload("ml", fmt.Sprint(minute/100)): one(1)})
		}
	}
	want := rows(s, w)
	v, s, loaded := restart(t, v, at(1000))
	if got := rows(s, w); !slices.Equal(got, want) || len(got) != 900 {
		t.Errorf("%d rows, want %d", len(got), len(want))
	}
	if loaded.Segments != 3 || loaded.Damaged != 0 || loaded.Rows != 1800 {
		t.Errorf("loaded %+v, want 3 segments and 1800 rows", loaded)
	}
	// A later minute goes on.
	record(NewRecorder(s, v, slog.New(slog.DiscardHandler)), 1001, map[Workload][]Value{w: one(5)})
	_, s, _ = restart(t, v, at(1002))
	if got := rows(s, w); len(got) != 901 || got[900] != "1001 signal=5/5/NaN" {
		t.Errorf("%d rows, the last is %s", len(got), got[len(got)-1])
	}
}

func TestADamagedSegmentIsSaidAndCostsItsTail(t *testing.T) {
	dir := t.TempDir()
	v, s := openVolume(t, dir, 0, nil), New(Config{})
	r := NewRecorder(s, v, slog.New(slog.DiscardHandler))
	w := workload("ml", "chat")
	for minute := range 2 * segmentMinutes {
		record(r, minute, map[Workload][]Value{w: one(float64(minute))})
	}
	files := segments(v.dir)
	if len(files) != 2 {
		t.Fatalf("%d segments, want 2", len(files))
	}
	if err := os.Truncate(files[0].path, files[0].size-3); err != nil { // as after a crash
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"9999999999-000.minutes2", "0000000001-000.minutes2", "x.minutes2", "lost+found"} {
		if err := os.WriteFile(filepath.Join(v.dir, name), []byte("no segment"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	v, s = openVolume(t, dir, 0, &log), New(Config{})
	loaded := v.Load(s, at(2*segmentMinutes))
	if got := rows(s, w); len(got) != 2*segmentMinutes-1 || loaded.Damaged != 3 || v.Stats().Damaged != 3 {
		t.Errorf("%d rows, %+v", len(got), loaded)
	}
	if text := log.String(); strings.Count(text, "a segment of the history is damaged") != 3 || !strings.Contains(text, filepath.Base(files[0].path)) {
		t.Errorf("the log says\n%s", text)
	}
}

func TestTwoProgramsNeverWriteOneFolder(t *testing.T) {
	dir := t.TempDir()
	a, b := openVolume(t, dir, 0, nil), openVolume(t, dir, 0, nil)
	if a.Dir() == b.Dir() {
		t.Fatalf("both write to %s", a.Dir())
	}
	discard := slog.New(slog.DiscardHandler)
	ra, rb := NewRecorder(New(Config{}), a, discard), NewRecorder(New(Config{}), b, discard)
	w := workload("ml", "chat")
	for minute := range 20 { // the second one is the other's successor
		if minute <= 10 {
			record(ra, minute, map[Workload][]Value{w: one(1)})
		}
		if minute >= 10 {
			record(rb, minute, map[Workload][]Value{w: one(2)})
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	c, s := openVolume(t, dir, 0, nil), New(Config{})
	if c.Dir() != a.Dir() {
		t.Errorf("the third one writes to %s, want the free %s", c.Dir(), a.Dir())
	}
	c.Load(s, at(20))
	if got := rows(s, w); len(got) != 20 || got[10] != "10 signal=1/1/NaN" || got[19] != "19 signal=2/2/NaN" {
		t.Errorf("rows are %q, want those of both", got)
	}
}

func TestSlotsAreBounded(t *testing.T) {
	dir := t.TempDir()
	for range maxSlots {
		openVolume(t, dir, 0, nil)
	}
	if _, err := OpenVolume(VolumeConfig{Dir: dir}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("one more: %v", err)
	}
}

func TestAVolumeStaysWithinItsLimitAndIsFair(t *testing.T) {
	const limit = 256 << 10
	v, s := openVolume(t, t.TempDir(), limit, nil), New(Config{MaxBytes: limit / 2})
	r := NewRecorder(s, v, slog.New(slog.DiscardHandler))
	random := rand.New(rand.NewPCG(1, 2))
	small := workload("small", "x")
	most := int64(0)
	for minute := range 3000 {
		rows := map[Workload][]Value{small: one(float64(minute % 10))}
		for i := range 8 {
			rows[workload("large", fmt.Sprint(i))] = load(random, 4)
		}
		record(r, minute, rows)
		most = max(most, v.Stats().Bytes)
	}
	if perClean := int64(8 * 4 * 10 * 10); most > limit+perClean {
		t.Errorf("the volume had %d bytes, want at most %d", most, limit+perClean)
	}
	want := rows(s, small)
	_, s, loaded := restart(t, v, at(3000))
	if got := rows(s, small); len(got) != 3000 || !slices.Equal(got, want) {
		t.Errorf("the small namespace has %d minutes after a restart, want 3000", len(got))
	}
	if got := rows(s, workload("large", "1")); len(got) < 100 || loaded.Damaged != 0 {
		t.Errorf("a large workload has %d minutes, %+v", len(got), loaded)
	}
}

func TestOldSegmentsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	gone, v := openVolume(t, dir, 0, nil), openVolume(t, dir, 0, nil)
	s := New(Config{})
	discard := slog.New(slog.DiscardHandler)
	record(NewRecorder(New(Config{}), gone, discard), 0, map[Workload][]Value{workload("ml", "chat"): one(1)})
	r := NewRecorder(s, v, discard)
	record(r, 0, map[Workload][]Value{workload("ml", "chat"): one(1)})
	record(r, segmentMinutes, map[Workload][]Value{workload("ml", "chat"): one(1)})
	later := time.Now().Add(15 * 24 * time.Hour) // segments age by the time of their last write
	if err := v.Clean(s, later); err != nil {
		t.Fatal(err)
	}
	if n, others := len(segments(v.dir)), len(segments(gone.dir)); n != 1 || others != 1 {
		t.Errorf("%d segments and %d of the other program are left, want the open one, and the other's while it runs", n, others)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if err := v.Clean(s, later); err != nil {
		t.Fatal(err)
	}
	if n := len(segments(gone.dir)); n != 0 {
		t.Errorf("%d segments of a program that has ended are left", n)
	}
}

func TestAFailedWriteIsSaidOnceAndRecovers(t *testing.T) {
	var log bytes.Buffer
	v, s := openVolume(t, t.TempDir(), 0, nil), New(Config{})
	r := NewRecorder(s, v, slog.New(slog.NewTextHandler(&log, nil)))
	w := workload("ml", "chat")
	record(r, 0, map[Workload][]Value{w: one(0)})
	if err := v.file.Close(); err != nil { // every write fails
		t.Fatal(err)
	}
	away := v.dir + "-away"
	if err := os.Rename(v.dir, away); err != nil {
		t.Fatal(err)
	}
	for minute := range 3 {
		record(r, 1+minute, map[Workload][]Value{w: one(1)})
	}
	if st := v.Stats(); st.Healthy || st.Failures != 3 || len(rows(s, w)) != 4 {
		t.Errorf("%+v, %d rows in memory, want 4", st, len(rows(s, w)))
	}
	if err := os.Rename(away, v.dir); err != nil {
		t.Fatal(err)
	}
	record(r, 4, map[Workload][]Value{w: one(4)})
	if text := log.String(); strings.Count(text, "in memory only") != 1 || strings.Count(text, "written again") != 1 {
		t.Errorf("the log says\n%s", text)
	}
	_, s, loaded := restart(t, v, at(5))
	if got := rows(s, w); !slices.Equal(got, []string{"0 signal=0/0/NaN", "4 signal=4/4/NaN"}) || loaded.Damaged != 0 {
		t.Errorf("rows are %q, %+v", got, loaded)
	}
}

// A program that ends between the parts of a rewrite loses nothing.
func TestAnUnfinishedRewriteIsRemoved(t *testing.T) {
	v, s := openVolume(t, t.TempDir(), 0, nil), New(Config{})
	w := workload("ml", "chat")
	record(NewRecorder(s, v, slog.New(slog.DiscardHandler)), 0, map[Workload][]Value{w: one(3)})
	half := filepath.Join(v.dir, "0000000001-000"+unfinished)
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, s, loaded := restart(t, v, at(1))
	if _, err := os.Stat(half); err == nil || len(rows(s, w)) != 1 || loaded.Damaged != 0 {
		t.Errorf("rows are %q, %+v, the file is there: %v", rows(s, w), loaded, err == nil)
	}
}

// The segments of another version are neither read nor removed.
func TestSegmentsOfAnotherVersionAreKept(t *testing.T) {
	dir, w := t.TempDir(), workload("ml", "chat")
	v, s := openVolume(t, dir, 0, nil), New(Config{})
	record(NewRecorder(s, v, slog.New(slog.DiscardHandler)), 0, map[Workload][]Value{w: one(3)})
	var old []string
	for _, name := range []string{"0000000001-000.minutes", "0000000361-000.minutes"} {
		old = append(old, filepath.Join(v.dir, name))
		if err := os.WriteFile(old[len(old)-1], make([]byte, 4<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	v, err := OpenVolume(VolumeConfig{Dir: dir, MaxBytes: 1 << 10, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = v.Close() }()
	s = New(Config{})
	if loaded := v.Load(s, at(1)); loaded != (Loaded{Segments: 1, Rows: 1}) || v.Stats().Bytes > 1<<10 {
		t.Errorf("%+v, %+v", loaded, v.Stats())
	}
	if text := log.String(); strings.Count(text, "format of another version: they are skipped and kept; remove them") != 1 || !strings.Contains(text, "files=2 first="+old[0]+" last="+old[1]) {
		t.Errorf("the log says\n%s", text)
	}
	v.cfg.MaxBytes = 1 // what it has written is written anew
	if err := v.Clean(s, time.Now().Add(15*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, path := range old {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// Readings from many goroutines are in the minute in which they were made.
func TestTheRecorderRecordsEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		r := NewRecorder(s, nil, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { r.Run(ctx) })
		start := time.Now().Truncate(time.Minute)
		for i := range 3 {
			w := workload("ml", fmt.Sprint(i))
			all.Go(func() {
				for ctx.Err() == nil && (i != 2 || time.Since(start) < 50*time.Second) { // the last one ends
					r.Add(time.Now(), w, []Value{Reading("minute", float64(time.Since(start)/time.Minute))})
					time.Sleep(time.Second)
				}
			})
		}
		time.Sleep(5*time.Minute + 30*time.Second)
		cancel()
		all.Wait()
		for i, want := range []int{5, 5, 1} {
			n := 0
			for row := range s.Rows(workload("ml", fmt.Sprint(i)), start, time.Now()) {
				if minute := row.At.Sub(start) / time.Minute; len(row.Values) != 1 || row.Values[0].Mean != float64(minute) {
					t.Errorf("minute %d has %v", minute, row.Values)
				}
				n++
			}
			if n != want {
				t.Errorf("workload %d has %d minutes, want %d", i, n, want)
			}
		}
		if len(r.open) != 2 {
			t.Errorf("%d workloads are open", len(r.open))
		}
	})
}
