// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
	r.Record(at(minute), func(add func(Workload, []Value)) {
		for w, values := range rows {
			add(w, values)
		}
	})
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
	if got := rows(s, w); len(got) != 901 || got[900] != "1001 signal/gpu=5/5/NaN" {
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
	for _, name := range []string{"9999999999-000.minutes", "0000000001-000.minutes", "x.minutes", "lost+found"} {
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
	if got := rows(s, w); len(got) != 20 || got[10] != "10 signal/gpu=1/1/NaN" || got[19] != "19 signal/gpu=2/2/NaN" {
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
	if got := rows(s, w); !slices.Equal(got, []string{"0 signal/gpu=0/0/NaN", "4 signal/gpu=4/4/NaN"}) || loaded.Damaged != 0 {
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
