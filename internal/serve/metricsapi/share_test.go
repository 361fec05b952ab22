// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Clients of one namespace that do not read their answers use its share, and keep no other out.
func TestUnreadAnswersKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unread := make(chan struct{})
		h := shared(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/unread" {
				<-unread
			}
		}))
		ask := func(name, path string) int {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name})))
			return w.Code
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		codes := map[int]int{}
		for range 2 * maxRequests {
			all.Go(func() {
				code := ask("system:serviceaccount:evil:a", "/unread")
				mu.Lock()
				defer mu.Unlock()
				codes[code]++
			})
		}
		time.Sleep(2 * slotPatience) // those that wait are refused
		for name, want := range map[string]int{
			"system:serviceaccount:evil:b": http.StatusTooManyRequests, "system:serviceaccount:kube-system:horizontal-pod-autoscaler": http.StatusOK, "system:anonymous": http.StatusOK,
		} {
			if code := ask(name, "/"); code != want {
				t.Errorf("%s gets %d, want %d", name, code, want)
			}
		}
		close(unread)
		all.Wait()
		if codes[http.StatusOK] != maxPayerRequests || codes[http.StatusTooManyRequests] != 2*maxRequests-maxPayerRequests {
			t.Errorf("the unread answers: %v, want %d and others refused", codes, maxPayerRequests)
		}
		if code := ask("system:serviceaccount:evil:a", "/"); code != http.StatusOK {
			t.Errorf("after they ended: %d", code)
		}
	})
}
