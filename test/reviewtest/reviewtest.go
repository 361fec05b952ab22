// SPDX-License-Identifier: Apache-2.0

// Package reviewtest answers, in place of an API server, what a server asks that
// delegates authentication and authorization.
package reviewtest

import (
	"encoding/json"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Token is the token that is accepted; its owner may do everything.
const Token = "good"

// Handler answers with the settings of the front proxy, whose certificates
// authority (PEM) signs, and reviews tokens and access.
func Handler(authority []byte) http.Handler {
	settings := corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "extension-apiserver-authentication", Namespace: "kube-system", ResourceVersion: "1"},
		Data:       map[string]string{"client-ca-file": string(authority), "requestheader-client-ca-file": string(authority)},
	}
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	const path = "/api/v1/namespaces/kube-system/configmaps"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path+"/extension-apiserver-authentication", func(w http.ResponseWriter, _ *http.Request) { answer(w, settings) })
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("watch") != "" {
			<-r.Context().Done()
			return
		}
		answer(w, corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.ConfigMap{settings}})
	})
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.TypeMeta = metav1.TypeMeta{Kind: "TokenReview", APIVersion: "authentication.k8s.io/v1"}
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: review.Spec.Token == Token, User: authenticationv1.UserInfo{Username: "hpa"}}
		answer(w, review)
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
		review.Status.Allowed = review.Spec.User == "hpa"
		answer(w, review)
	})
	return mux
}
