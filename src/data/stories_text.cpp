// What the stories are about. stories_rules.h says how it is read.
#include "data/stories_rules.h"

namespace ridge {

const std::string_view kStoryText = R"rules(
# Who. No word of a rule is the beginning of another one.
kid.girl (sex=girl, he=she, He=She, him=her, his=her, other=boy):
  Lily | Mia | Anna | Rose | Ella | Nora | Emma | Ruth | Ivy | Clara | Tess | June | Maya | Hazel | Greta | Iris | Zoe | Fern | Alma | Wren | Dora | Vera | Pia | Olga
kid.boy (sex=boy, he=he, He=He, him=him, his=his, other=girl):
  Tom | Ben | Max | Sam | Leo | Finn | Jack | Theo | Hugo | Otto | Paul | Emil | Noah | Oscar | Felix | Gus | Ned | Jonas | Ravi | Kit | Carl | Bruno | Walt | Simon
child: [kid.girl] | [kid.boy]
pet.boy (sex=boy, he=he, He=He, him=him, his=his):
  dog | fox | bear | frog | rabbit | hare | wolf | toad | goat | crow | pony | badger | robin | beaver | donkey | lion | hedgehog
pet.girl (sex=girl, he=she, He=She, him=her, his=her):
  cat | mouse | hen | duck | goose | squirrel | snail | turtle | sparrow | mole | swan | lamb | magpie | bee | heron
pet: [pet.boy] | [pet.girl]
nature: little | big | kind | clever | brave | shy | young | hungry | merry | wise | quiet | tiny | proud | sleepy | lonely | gentle | silly | busy | grumpy | bold | curious | polite | lazy | careful | patient

# What. Each thing has something that is done with it.
colour: red | blue | green | white | yellow | black | brown | golden | silver | grey | purple | pink
thing.toy:
  ball (use=threw) | kite (use=flew) | drum (use=beat) | book (use=read) | bell (use=rang) | flute (use=played) | whistle (use=blew) | boat (use=sailed)
  | map (use=read) | marble (use=rolled) | sled (use=pulled) | doll (use=hugged) | hoop (use=rolled) | horn (use=blew) | mask (use=wore) | puppet (use=hugged)
thing.house:
  hat (use=wore) | lamp (use=lit) | cup (use=filled) | key (use=hid) | basket (use=filled) | coat (use=wore) | letter (use=read) | candle (use=lit) | scarf (use=wore)
  | bucket (use=filled) | ring (use=hid) | mirror (use=cleaned) | spoon (use=licked) | blanket (use=folded) | kettle (use=filled) | lantern (use=lit) | broom (use=hid)
thing.wild:
  stone (use=threw) | shell (use=cleaned) | feather (use=kept) | flower (use=smelled) | stick (use=threw) | leaf (use=kept) | pebble (use=rolled) | mushroom (use=smelled)
  | nest (use=watched) | nut (use=hid) | bone (use=hid) | rope (use=pulled) | root (use=pulled)
thing: [thing.toy] | [thing.house] | [thing.wild]
count: four (one=three, two=two) | five (one=four, two=three) | six (one=five, two=four) | seven (one=six, two=five) | three (one=two, two=one) | eight (one=seven, two=six) | nine (one=eight, two=seven)
food: apples | nuts | plums | pears | cakes | berries | carrots | buns | cherries | eggs | figs | cookies | peas | lemons
weather: sunny (sky=day) | warm (sky=day) | cold (sky=night) | bright (sky=day) | windy (sky=day) | dark (sky=night) | rainy (sky=day) | quiet (sky=night) | snowy (sky=day) | starry (sky=night)
  | foggy (sky=day) | clear (sky=night) | mild (sky=day) | stormy (sky=night)
time.day: day | morning | afternoon
time.night: night | evening

# Where, and what can be found there.
place:
  garden (kind=house) | forest (kind=wild) | lake (kind=wild) | market (kind=toy) | hill (kind=wild) | school (kind=toy) | river (kind=wild) | kitchen (kind=house)
  | beach (kind=wild) | barn (kind=house) | village (kind=toy) | meadow (kind=wild) | mill (kind=house) | bridge (kind=wild) | castle (kind=house) | fair (kind=toy)
  | tower (kind=house) | harbour (kind=toy) | cave (kind=wild) | bakery (kind=house)
spot: in the garden | in the forest | by the lake | at the market | on the hill | by the river | in the barn | on the beach | at the mill | in the meadow | by the sea
  | in the castle | on the bridge | at the fair | in the tower | in the cave
hide: under the bed | behind the door | on the roof | in a tree | under the stairs | in the oven | behind the clock | in a pot | under a bush | on a shelf
went: went | ran | walked | came | rode | hurried

# How it feels.
feel.good: happy | glad | proud | merry | calm | pleased | cheerful | thankful
feel.bad: sad | cross | tired | worried | gloomy | upset | lonely | scared
any: [feel.good] | [feel.bad]
was: was | felt | looked

story:
  [child] [got] a [colour] [thing].$                                                                    @0-0
  | [hero=child] [deed]$                                                                                @1-1
  | The [pet=pet] had [n=count] [food]. {pet.He} ate [eaten].$                                          @1-1
  | "I am [any]," said the [nature] [pet].$                                                             @1-1
  | [hero=child] [errand@hero.sex]$                                                                     @2-2
  | One [w=weather] [time@w.sky] [hero=child] [walk@hero.sex]$                                          @2-2
  | The [nature] [pet=pet] had [n=count] [f=food]. {pet.He} gave [gift]$                                @2-2
  | "Where is my [c=colour] [t=thing]?" asked [hero=child]. [seek@hero.sex]$                            @2-2
  | One [w=weather] [time@w.sky] [hero=child] [went] to the [p=place]. [plot@hero.sex][after]           @3
  | There was once a [nature] [named] who had a [c=colour] [t=thing.toy]. [wish@hero.sex][after]        @3
  | Long ago a [a=nature] [pet=pet] lived [spot]. [fable@pet.sex]$                                      @3

# One or two sentences.
got: had (mood=good) | found (mood=good) | lost (mood=bad) | saw (mood=good) | made (mood=good) | broke (mood=bad) | won (mood=good)
deed:
  [v=got] a [colour] [thing]. {hero.He} [was] [feel@v.mood].
  | [went] to the [p=place]. {hero.He} found a [thing@p.kind].
  | gave the [pet=pet] [count] [food]. {pet.He} was [feel.good].
eaten: one and kept {n.one} | two and kept {n.two}

# Three sentences.
errand.girl/boy:
  lost <her/his> [c=colour] [t=thing]. "Have you seen it?" <she/he> asked the [pet=pet]. [seen]
  | made a [c=colour] [t=thing.toy] for [k=kid@hero.other]. {k.He} {t.use} it all day and was [feel.good].
  | and [k=kid@hero.other] [went] to the [p=place]. They found a [c=colour] [t=thing@p.kind]. Then {k} {t.use} it and was [any].
seen: "It is [spot]," said the {pet}. | "No," said the {pet}. {hero} was [feel.bad].
walk.girl/boy:
  [went] to the [p=place]. <She/He> found a [c=colour] [t=thing@p.kind] and {t.use} it. <She/He> was [feel.good].
  | met a [nature] [pet=pet]. "Come to the [p=place]!" said the {pet}. <She/He> [follow].
follow: [went] with {pet.him} | was too [feel.bad]
gift: one to [k=child]. Now {pet.he} had {n.one} {f}. [thanks] | two to [k=child]. Now {pet.he} had {n.two} {f}. [thanks]
thanks: "Thank you," said {k}. | They were [feel.good].
seek.girl/boy:
  "Here it is," said the [pet]. <She/He> {t.use} it and was [feel.good].
  | <She/He> [went] to the [place], but it was [hide].

# Longer ones. What becomes of the thing is remembered for the days after: does the hero still have it?
yes: Yes (has=no)
no: No (has=yes)
found: found it (has=yes)
gone: gone (has=no)
one: one (has=yes)
two: two (has=yes)
friends: friends (has=no)
named: girl named [hero=kid.girl] | boy named [hero=kid.boy]
plot.girl/boy:
  <She/He> found a [c=colour] [t=thing@p.kind] and {t.use} it. "Is it yours?" <she/he> asked the [nature] [pet=pet]. [yours]
  | <She/He> had <her/his> [c=colour] [t=thing.toy] but lost it there. "Do not be sad," said a [nature] [pet=pet]. "I saw your {t} [spot]." They [search]
  | A [nature] [pet=pet] was hungry. <She/He> had [n=count] [f=food] in a [c=colour] [t=vessel] and gave {pet.him} [share]
  | It began to [rain], so <she/he> hid [hide] with a [nature] [pet=pet]. The {pet} had a [c=colour] [t=thing.house], and they {t.use} it. When the [light@w.sky] came out they were [g=friends].
vessel: basket (use=filled) | bag (use=carried) | box (use=opened) | bowl (use=filled) | pot (use=cleaned) | jar (use=opened)
yours:
  "[g=yes]," said the {pet}, and {hero} gave {pet.him} the {t}. {pet.He} was [feel.good].
  | "[g=no]," said the {pet}, "it is yours now." {hero} took the {c} {t} home and was [feel.good].
search: [went] there and [g=found]. {hero} was [feel.good]. | looked and looked, but it was [g=gone]. {hero} was [feel.bad].
share: [g=one]. Now {hero.he} had {n.one} {f}. [kind] | [g=two]. Now {hero.he} had {n.two} {f}. [kind]
kind: "You are kind," said the {pet}. | They ate and were [feel.good].
rain: rain | snow | storm | hail | thunder
light.day: sun | rainbow
light.night: moon | stars
wish.girl/boy:
  Every [time.day] <she/he> {t.use} it [spot]. One day [k=kid@hero.other] asked, "May I have it?" [may]
  | <She/He> {t.use} it [spot] and lost it there. "Do not be [feel.bad]," said a [nature] [pet=pet]. "It is [hide]!" They [search]
may:
  "[g=yes]," said {hero}. {k} gave {hero.him} [n=count] [f=food] and was [feel.good].
  | "[g=no]," said {hero}, "it is mine." {k} was [feel.bad] and [went] home.
fable.girl/boy:
  <She/He> had a [c=colour] [t=thing] but no friends. One [w=weather] [time@w.sky] a [nature] [q=pet] came and asked for it. [stranger]
  | <She/He> wanted to be [b=nature], not {a}. "You are {a}, and that is good," said the [nature] [q=pet]. Then the {pet} was [feel.good].
stranger:
  The {pet} gave {q.him} the {t}. Now the {a} {pet} had a friend.
  | "No," said the {pet}. The {q} [went] away, and the {a} {pet} was [feel.bad].

# The days after.
after: _The next [time.day] {hero} [second@g.has][evening] @4 | $
second.yes:
  took the {c} {t} to the [p=place]. [k=child] saw it and asked, "May I try it?" [try]
  | came with the {c} {t} and met [k=kid@hero.other] [spot]. "I have [n=count] [f=food]," said {k}, and gave {hero.him} [part]. {hero.He} was [feel.good].
second.no:
  missed the {c} {t}. {hero.He} [went] to [k=child] and asked for help. [help]
  | wanted a new {t}. "I have a [d=colour] one," said [k=child], "but not a {c} one." {hero} {t.use} it [spot] and was [any].
try:
  "Yes," said {hero}, and {k} {t.use} it until it was dark. Both were [feel.good].
  | "Not now," said {hero}. {k} was [feel.bad] and [went] to the {p} alone.
part: one, so {k} had {n.one} | two, so {k} had {n.two}
help:
  "You can have my [x=thing]," said {k}. So {hero} {x.use} it and was [feel.good].
  | "Let us look [spot]," said {k}. They looked, but found only a [d=colour] [x=thing].
evening: _A week later a [nature] [q=pet] came with [n=count] [f=food] and asked {hero} for the {c} {t}. [deal@g.has][night] @5 | $
deal.yes:
  "Take it," said {hero}, and {hero.he} got the {n} {f}. {hero.He} ate [eaten] for {k}. The {q} was [feel.good].
  | "It is mine," said {hero}. The {q} was [feel.bad], ate [eaten], and [went] back to the [place].
deal.no:
  "I do not have it," said {hero}. "I am sorry," said the {q}, gave {hero.him} two of the {f}, and [went] back to the [place].
  | "It is gone," said {hero}, "but I have a [d=colour] [x=thing]." The {q} {x.use} it [spot] and was [feel.good].
night:
  _At night {hero} and {k} sat [spot] and spoke of the {q} with the {n} {f}. "It was [nature] of {q.him} to come," said {k}. Then they saw a [pet] [hide] and were [any].$
  | $
)rules";

}  // namespace ridge
