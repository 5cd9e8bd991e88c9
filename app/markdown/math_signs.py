"""What TeX's commands stand for in Unicode."""

from __future__ import annotations

_GREEK = (
    "alpha α beta β gamma γ delta δ epsilon ε varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ "
    "lambda λ mu μ nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi φ varphi φ chi χ psi ψ omega ω Gamma Γ "
    "Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω"
)
_RELATIONS = (
    "le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ in ∈ notin ∉ "
    "ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ mid ∣ parallel ∥ perp ⊥ prec ≺ succ ≻ models ⊨ vdash ⊢"
)
_OPERATORS = (
    "pm ± mp ∓ times × div ÷ cdot · ast ∗ star ⋆ circ ∘ bullet • oplus ⊕ otimes ⊗ cup ∪ cap ∩ setminus ∖ "
    "wedge ∧ land ∧ vee ∨ lor ∨ neg ¬ lnot ¬ sum ∑ prod ∏ int ∫ iint ∬ oint ∮ partial ∂ nabla ∇ infty ∞"
)
_ARROWS = (
    "to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ implies ⇒ iff ⇔ "
    "Leftrightarrow ⇔ mapsto ↦ longrightarrow ⟶ uparrow ↑ downarrow ↓ hookrightarrow ↪"
)
_OTHERS = (
    "forall ∀ exists ∃ nexists ∄ emptyset ∅ varnothing ∅ ldots … cdots ⋯ dots … vdots ⋮ ddots ⋱ prime ′ "
    "degree ° angle ∠ triangle △ therefore ∴ because ∵ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ langle ⟨ rangle ⟩ "
    "lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lVert ‖ rVert ‖ Vert ‖ vert | lvert | rvert | backslash \\ square □"
)
_NAMES = (
    "sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln lg exp lim max min sup inf det dim "
    "ker gcd arg deg Pr mod"
)


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


SIGNS: dict[str, str] = {
    **_pairs(_GREEK),
    **_pairs(_RELATIONS),
    **_pairs(_OPERATORS),
    **_pairs(_ARROWS),
    **_pairs(_OTHERS),
    **{name: name for name in _NAMES.split()},
    "bmod": " mod ",
    "quad": "  ",
    "qquad": "    ",
}
"""From a command's name to its sign."""

LETTERS: dict[str, dict[str, str]] = {
    "mathbb": dict(zip("CHNPQRZE", "ℂℍℕℙℚℝℤ𝔼", strict=True)),
    "mathcal": dict(zip("BEFHILMR", "ℬℰℱℋℐℒℳℛ", strict=True)),
    "mathfrak": dict(zip("CHIRZ", "ℭℌℑℜℨ", strict=True)),
}
"""Alphabets that have letters of their own."""

RAISED: dict[str, str] = dict(
    zip(
        "0123456789+-=()abcdefghijklmnoprstuvwxyzTβγδθ′*",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᵀᵝᵞᵟᶿ′*",
        strict=True,
    )
)
LOWERED: dict[str, str] = dict(
    zip("0123456789+-=()aehijklmnoprstuvxβγρφχ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ", strict=True)
)
"""Letters that Unicode has raised and lowered."""
